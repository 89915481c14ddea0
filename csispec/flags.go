package csispec

import "strings"

// credentialWords are looked for in the name of a mount option. The test is
// wide on purpose: a readable key=path is worth less than a hidden password.
var credentialWords = []string{"pass", "pwd", "cred", "secret", "token", "key"}

// redactFlag masks what is secret in one mount flag.
func redactFlag(flag string) string {
	before, secret, after := cutSecret(flag)
	if secret == "" {
		return flag
	}
	var b strings.Builder
	for {
		b.WriteString(before)
		if secret == "" {
			return b.String()
		}
		b.WriteString(mask)
		before, secret, after = cutSecret(after)
	}
}

// cutSecret finds the first secret in a mount flag; secret is empty, and before
// is the whole flag, if there is none.
func cutSecret(flag string) (before, secret, after string) {
	from, to := credential(flag)
	if i, j := userInfo(flag); i < from {
		from, to = i, j
	}
	return flag[:from], flag[from:to], flag[to:]
}

// credential finds the value of the first option whose name tells that it is a
// credential. It reaches to the end of the flag, as a password may hold a comma.
func credential(flag string) (from, to int) {
	for start := 0; start < len(flag); {
		end := len(flag)
		if i := strings.IndexByte(flag[start:], ','); i >= 0 {
			end = start + i
		}
		if i := optionSecret(flag[start:end]); i >= 0 {
			return start + i, len(flag)
		}
		start = end + 1
	}
	return len(flag), len(flag)
}

// optionSecret finds where the secret of one option begins, or -1. A name ends at
// the first '=' or ':', and at white space: "-o password=x" is as good as
// "password x".
func optionSecret(opt string) int {
	word := 0
	for i := range len(opt) {
		switch opt[i] {
		case ' ', '\t', '\n', '\r', '\v', '\f':
			if isCredential(opt[word:i]) {
				return i + 1
			}
			word = i + 1
		case '=', ':':
			name := opt[word:i]
			if isCredential(name) {
				return i + 1
			}
			// mount.cifs takes user=name%password.
			if j := strings.IndexByte(opt[i:], '%'); j >= 0 && strings.Contains(strings.ToLower(name), "user") {
				return i + j + 1
			}
			return -1
		}
	}
	return -1
}

func isCredential(name string) bool {
	name = strings.ToLower(name)
	for _, w := range credentialWords {
		if strings.Contains(name, w) {
			return true
		}
	}
	return false
}

// userInfo finds what stands before the host in a URL.
func userInfo(flag string) (from, to int) {
	if i := strings.Index(flag, "://"); i >= 0 {
		if j := strings.LastIndexByte(flag, '@'); j > i+len("://") {
			return i + len("://"), j
		}
	}
	return len(flag), len(flag)
}
