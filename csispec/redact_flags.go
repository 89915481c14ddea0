package csispec

import "strings"

// credentialWords identify a credential by the name of a mount option. They match more
// than credentials: masking key=path is better than printing a password.
var credentialWords = []string{"pass", "pwd", "pw", "cred", "secret", "token", "key", "auth", "sig", "sas"}

// longestFlag is what the specification allows for all flags of a volume. A longer flag is
// refused, and masked as a whole before that.
const longestFlag = mapMax

// redactFlag masks what is secret in the i-th mount flag, and the name of a user,
// which is half of a credential.
func redactFlag(flags []string, i int) string {
	flag := flags[i]
	if len(flag) > longestFlag || follows(flags, i) {
		return mask
	}
	before, secret, after := cutSecret(flag, true)
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
		before, secret, after = cutSecret(after, true)
	}
}

// follows reports whether flag i is the value of a credential flag before it, as in
// --password x. The value may begin with a dash.
func follows(flags []string, i int) bool {
	if i == 0 || !strings.HasPrefix(flags[i-1], "-") || len(flags[i-1]) > longestFlag {
		return false
	}
	return !strings.ContainsAny(flags[i-1], "=: \t") && isCredential(flags[i-1])
}

// cutSecret splits a mount flag around its first secret; secret is empty, and before
// is the whole flag, if there is none. With users, a user name counts as a secret.
func cutSecret(flag string, users bool) (before, secret, after string) {
	from, to := credential(flag, users)
	if i, j := userInfo(flag); i < from {
		from, to = i, j
	}
	return flag[:from], flag[from:to], flag[to:]
}

// credential finds the value of the first option whose name denotes a credential. It
// extends to the end of the flag, because a password may contain a comma.
func credential(flag string, users bool) (from, to int) {
	for start := 0; start < len(flag); {
		end := len(flag)
		if i := strings.IndexByte(flag[start:], ','); i >= 0 {
			end = start + i
		}
		switch i, user := optionSecret(flag[start:end]); {
		case i >= 0 && !user:
			return start + i, len(flag)
		case i >= 0:
			// mount.cifs accepts user=name%password.
			password := strings.IndexByte(flag[start+i:end], '%')
			switch {
			case password >= 0 && users:
				return start + i, len(flag)
			case password >= 0:
				return start + i + password + 1, len(flag)
			case users && i < end-start:
				return start + i, end
			}
		}
		start = end + 1
	}
	return len(flag), len(flag)
}

// optionSecret returns where the secret or the user name in one option begins, or -1. A
// name ends at a '=' or ':', and at white space: "-o password=x", "--options=ro:password=x"
// and "password x" are found.
func optionSecret(opt string) (at int, user bool) {
	word := 0
	for i := range len(opt) {
		switch opt[i] {
		case ' ', '\t', '\n', '\r', '\v', '\f':
			if isCredential(opt[word:i]) {
				return i + 1, false
			}
			word = i + 1
		case '=', ':':
			name := opt[word:i]
			if isCredential(name) {
				return i + 1, false
			}
			if strings.Contains(strings.ToLower(name), "user") {
				return i + 1, true
			}
			word = i + 1
		}
	}
	return -1, false
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

// userInfo finds the user information before the host in a URL, with or without its
// scheme.
func userInfo(flag string) (from, to int) {
	if i := strings.Index(flag, "//"); i >= 0 {
		if j := strings.LastIndexByte(flag, '@'); j > i+len("//") {
			return i + len("//"), j
		}
	}
	return len(flag), len(flag)
}

// flagSecrets calls add for every secret in a mount flag, until it returns false.
func flagSecrets(flag string, add func(string) bool) bool {
	for {
		_, secret, after := cutSecret(flag, false)
		if secret == "" {
			return true
		}
		if !add(secret) {
			return false
		}
		// The text after a comma may be another option, and the user information of a
		// URL has a password after its colon.
		for _, sep := range []string{",", ":"} {
			if a, b, found := strings.Cut(secret, sep); found && (!add(a) || !add(b)) {
				return false
			}
		}
		flag = after
	}
}
