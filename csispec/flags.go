package csispec

import "strings"

// credentialWords are looked for in the name of a mount option. The test is
// wide on purpose: a readable key=path is worth less than a hidden password.
var credentialWords = []string{"pass", "pwd", "cred", "secret", "token", "key"}

// redactFlag masks what is secret in one mount flag.
func redactFlag(flag string) string {
	var b strings.Builder
	for {
		before, secret, after := cutSecret(flag)
		b.WriteString(before)
		if secret == "" {
			return b.String()
		}
		b.WriteString(mask)
		flag = after
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
		opt := flag[start:end]
		sep := strings.IndexAny(opt, "=:")
		if sep < 0 {
			sep = strings.IndexAny(opt, " \t")
		}
		if sep >= 0 {
			name := strings.ToLower(opt[:sep])
			for _, w := range credentialWords {
				if strings.Contains(name, w) {
					return start + sep + 1, len(flag)
				}
			}
			// mount.cifs takes user=name%password.
			if i := strings.IndexByte(opt[sep:], '%'); i >= 0 && strings.Contains(name, "user") {
				return start + sep + i + 1, len(flag)
			}
		}
		start = end + 1
	}
	return len(flag), len(flag)
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
