package csispec

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A view is a text of which escape sequences are decoded. at has the offset in the original
// text where each byte begins, and as its last element the length of the original.
type view struct {
	text string
	at   []int32
}

func verbatim(text string) view {
	at := make([]int32, len(text)+1)
	for i := range at {
		at[i] = int32(i)
	}
	return view{text, at}
}

// decoded decodes v once, with a function that returns what the escape sequence at the
// begin of a text stands for, and its length; 0 if there is none.
func (v view) decoded(sequence func(text string, to []byte) ([]byte, int)) view {
	text, at := make([]byte, 0, len(v.text)), make([]int32, 0, len(v.text)+1)
	for i := 0; i < len(v.text); {
		before := len(text)
		n := 0
		if text, n = sequence(v.text[i:], text); n == 0 {
			text, n = append(text, v.text[i]), 1
		}
		for range len(text) - before {
			at = append(at, v.at[i])
		}
		i += n
	}
	return view{string(text), append(at, v.at[len(v.text)])}
}

// percent decodes a byte of a URL.
func percent(text string, to []byte) ([]byte, int) {
	if text[0] == '%' {
		if b, ok := digitsOf(text, 1, 2, 16); ok {
			return append(to, byte(b)), 3
		}
	}
	return to, 0
}

// backslash decodes an escape sequence of C, Go, JSON or the text format of protocol
// buffers.
func backslash(text string, to []byte) ([]byte, int) {
	if len(text) < 2 || text[0] != '\\' {
		return to, 0
	}
	switch c := text[1]; c {
	case '\\', '"', '\'', '/', '?', '`':
		return append(to, c), 2
	case 'x', 'X':
		for digits := 2; digits > 0; digits-- {
			if b, ok := digitsOf(text, 2, digits, 16); ok {
				return append(to, byte(b)), 2 + digits
			}
		}
	case '0', '1', '2', '3', '4', '5', '6', '7':
		for digits := 3; digits > 0; digits-- {
			if b, ok := digitsOf(text, 1, digits, 8); ok && b < 256 {
				return append(to, byte(b)), 1 + digits
			}
		}
	case 'u':
		if r, ok := digitsOf(text, 2, 4, 16); ok {
			if utf16.IsSurrogate(r) && strings.HasPrefix(text[6:], `\u`) {
				if low, ok := digitsOf(text, 8, 4, 16); ok {
					return utf8.AppendRune(to, utf16.DecodeRune(r, low)), 12
				}
			}
			return utf8.AppendRune(to, r), 6
		}
	case 'U':
		if r, ok := digitsOf(text, 2, 8, 16); ok {
			return utf8.AppendRune(to, r), 10
		}
	default:
		if i := strings.IndexByte("abefnrtv", c); i >= 0 {
			return append(to, "\a\b\x1b\f\n\r\t\v"[i]), 2
		}
	}
	return to, 0
}

// digitsOf reads so many digits of a number at an offset of text.
func digitsOf(text string, from, digits, base int) (rune, bool) {
	if len(text) < from+digits {
		return 0, false
	}
	n, err := strconv.ParseUint(text[from:from+digits], base, 31)
	return rune(n), err == nil
}
