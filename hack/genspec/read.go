package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A spec is csi.proto with the classified rules of its fields.
type spec struct {
	messages []*message // as declared, each before those it contains
	enums    []protoreflect.EnumDescriptor
}

type message struct {
	protoreflect.MessageDescriptor
	fields []*field
	hand   bool // has a rule in csispec/handwritten.go
	// alpha means that it is the request of a call that is alpha.
	alpha bool
}

type field struct {
	protoreflect.FieldDescriptor
	rule
}

// A rule is the rules for one field.
type rule struct {
	required, optional bool
	path               bool // an absolute path
	lenientPath        bool // which WithRelativeVolumePathAllowed lets be relative
	lenientEmpty       string
	nonNegative        bool
	positive           bool
	outOfRange         bool // a negative number is OUT_OF_RANGE
	noControls         bool
	max                int    // size in bytes where it is not the general one
	total              int    // size in bytes of all elements together, which have no other limit
	gate               string // the capability without which it must not be set
	requiredWith       string // the capability with which it must be set
	secret, alpha      bool
}

// The sentences of csi.proto that state a rule, after white space is folded.
var (
	saysRequired    = regexp.MustCompile(`\b(?:[Tt]his field is|[Tt]his is an?) REQUIRED\b`)
	saysOptional    = regexp.MustCompile(`\b(?:[Tt]his field is|[Tt]his is an?) OPTIONAL\b`)
	saysNonNegative = regexp.MustCompile(`\bMUST NOT (?:be|set) negative\b`)
	saysPositive    = regexp.MustCompile(`\bMUST be greater than zero\b`)
	saysAbsolute    = regexp.MustCompile(`\bMUST be an absolute path\b`)
	saysOverrides   = regexp.MustCompile(`\boverrides the general CSI size limit\b`)
	saysPathSize    = regexp.MustCompile(`SP MUST accept a max path length of at least 128 bytes`)
	saysSize        = regexp.MustCompile(`\bThe size of this field SHALL NOT exceed (\d+) bytes`)
	saysCharacters  = regexp.MustCompile(`\bMUST be (\d+) characters or less\b`)
	saysTotal       = regexp.MustCompile(`\btotal size of this repeated field SHALL NOT exceed (\d+) KiB`)
	saysBanned      = regexp.MustCompile(`except those containing the following banned characters: (.*?)\. \(`)
	saysGate        = regexp.MustCompile(`SHALL NOT be (?:set|specified) unless the (?:SP has|plugin advertises) the (\w+)` +
		`|MUST also set the (\w+) plugin capability` +
		`|MUST set this field to false if SP does not have the (\w+) controller capability` +
		"|has `(\\w+)` controller capability, and SHALL be left unset if the corresponding Controller Plugin does not have this capability")
	saysRequiredWith = regexp.MustCompile(`MUST be specified if the (\w+) controller capability is supported`)
	saysAdvice       = regexp.MustCompile(`general CSI size limit, 128 byte, is RECOMMENDED`)
	// Words in sentences that the above must have matched.
	suspicious = regexp.MustCompile(`negative|MUST be greater|absolute path|exceed|size limit|characters or less|banned|SHALL NOT be (?:set|specified)|left unset|MUST also set|MUST be specified if`)
)

// banned are the control characters that csispec bans from names.
const banned = "U+0000-U+0008, U+000B, U+000C, U+000E-U+001F, U+007F-U+009F"

func read(file protoreflect.FileDescriptor) (*spec, error) {
	s := &spec{}
	var errs []error
	used := map[string]bool{}
	alpha := alphaRequests(file)
	enums := func(es protoreflect.EnumDescriptors) {
		for i := range es.Len() {
			s.enums = append(s.enums, es.Get(i))
		}
	}
	var walk func(protoreflect.MessageDescriptors)
	walk = func(ms protoreflect.MessageDescriptors) {
		for i := range ms.Len() {
			md := ms.Get(i)
			if md.IsMapEntry() {
				continue
			}
			m := &message{MessageDescriptor: md, alpha: alpha[md.FullName()], hand: handRules[md.FullName()]}
			s.messages = append(s.messages, m)
			for j := range md.Fields().Len() {
				f, err := readField(md.Fields().Get(j), used)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", md.Fields().Get(j).FullName(), err))
				}
				m.fields = append(m.fields, f)
			}
			enums(md.Enums())
			walk(md.Messages())
		}
	}
	enums(file.Enums())
	walk(file.Messages())
	for _, o := range overrides {
		for _, name := range o.fields {
			if !used[name] {
				errs = append(errs, fmt.Errorf("an override names %s, which csi.proto does not have", name))
			}
		}
	}
	return s, errors.Join(errs...)
}

func readField(fd protoreflect.FieldDescriptor, used map[string]bool) (*field, error) {
	f := &field{FieldDescriptor: fd}
	f.secret = option(fd, "csi.v1.csi_secret")
	f.alpha = option(fd, "csi.v1.alpha_field")
	loc := fd.ParentFile().SourceLocations().ByDescriptor(fd)
	// A blank line detaches the first half of a comment.
	text := strings.Join(strings.Fields(strings.Join(loc.LeadingDetachedComments, " ")+" "+loc.LeadingComments), " ")
	if err := f.classify(text); err != nil {
		return f, err
	}
	name := strings.TrimPrefix(string(fd.FullName()), "csi.v1.")
	for _, o := range overrides {
		for _, n := range o.fields {
			if n == name {
				o.set(&f.rule)
				used[n] = true
			}
		}
	}
	if fd.ContainingOneof() == nil && f.required == f.optional {
		return f, fmt.Errorf("neither or both of REQUIRED and OPTIONAL in its comment: add an override")
	}
	return f, f.check()
}

func (r *rule) classify(text string) error {
	r.required = saysRequired.MatchString(text)
	r.optional = saysOptional.MatchString(text)
	r.nonNegative = saysNonNegative.MatchString(text)
	r.positive = saysPositive.MatchString(text)
	r.path = saysAbsolute.MatchString(text)
	var err error
	number := func(re *regexp.Regexp, unit int) int {
		m := re.FindStringSubmatch(text)
		if m == nil {
			return 0
		}
		n, e := strconv.Atoi(m[1])
		err = errors.Join(err, e)
		return n * unit
	}
	r.max = max(number(saysSize, 1), number(saysCharacters, 1))
	r.total = number(saysTotal, 1024)
	if m := saysBanned.FindStringSubmatch(text); m != nil {
		r.noControls = true
		if m[1] != banned {
			return fmt.Errorf("bans the characters %s, not %s: change csispec's isControl", m[1], banned)
		}
	}
	for _, c := range []struct {
		to *string
		re *regexp.Regexp
	}{{&r.gate, saysGate}, {&r.requiredWith, saysRequiredWith}} {
		if m := c.re.FindStringSubmatch(text); m != nil {
			*c.to = capabilities[strings.Join(m[1:], "")]
			if *c.to == "" {
				return fmt.Errorf("names the capability %s: add it to capabilities", strings.Join(m[1:], ""))
			}
		}
	}
	if saysOverrides.MatchString(text) {
		// Of these fields, one states its size and the others are paths.
		if (r.max != 0) == saysPathSize.MatchString(text) {
			return fmt.Errorf("overrides the size limit, but states no new one")
		}
		r.path = r.path || r.max == 0
	}
	rest := text
	for _, re := range []*regexp.Regexp{saysNonNegative, saysPositive, saysAbsolute, saysOverrides, saysPathSize, saysSize,
		saysCharacters, saysTotal, saysBanned, saysGate, saysRequiredWith, saysAdvice} {
		rest = re.ReplaceAllString(rest, "")
	}
	if word := suspicious.FindString(rest); word != "" {
		return fmt.Errorf("%q in its comment matches no known sentence", word)
	}
	return err
}

// check rejects rules that do not apply to the kind of the field.
func (f *field) check() error {
	text := f.Kind() == protoreflect.StringKind && !f.IsMap()
	integer := f.Kind() == protoreflect.Int32Kind || f.Kind() == protoreflect.Int64Kind ||
		f.Message() != nil && f.Message().FullName() == "google.protobuf.Int64Value"
	switch {
	case (f.path || f.noControls || f.max != 0 || f.total != 0) && !text,
		(f.path || f.noControls) && f.IsList(),
		f.total != 0 && !f.IsList(),
		(f.nonNegative || f.positive) && !integer,
		f.secret && !f.IsMap(),
		f.IsMap() && f.MapValue().Kind() != protoreflect.StringKind:
		return fmt.Errorf("a %v cannot have the rule %+v", f.Kind(), f.rule)
	}
	return nil
}

func alphaRequests(file protoreflect.FileDescriptor) map[protoreflect.FullName]bool {
	alpha := map[protoreflect.FullName]bool{}
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		for j := range s.Methods().Len() {
			if m := s.Methods().Get(j); option(s, "csi.v1.alpha_service") || option(m, "csi.v1.alpha_method") {
				alpha[m.Input().FullName()] = true
			}
		}
	}
	return alpha
}

// option reports whether a bool option is set. It is found by name because the Go types
// of the options are not linked into this program.
func option(d protoreflect.Descriptor, name protoreflect.FullName) bool {
	set := false
	d.Options().ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		set = set || fd.FullName() == name && v.Bool()
		return true
	})
	return set
}
