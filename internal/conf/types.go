package conf

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// A Decoder is a type that decodes itself. Problems go to p, whose Where already names the place; the receiver holds
// the default.
type Decoder interface {
	DecodeConf(n *Node, p *Problems)
}

// A Defaulter is a type whose values in lists and maps and behind nil pointers begin with defaults: SetDefaults is
// called on each before it is decoded.
type Defaulter interface {
	SetDefaults()
}

// fresh returns a new value of type t, with its defaults.
func fresh(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if d, ok := v.Interface().(Defaulter); ok {
		d.SetDefaults()
	}
	return v.Elem()
}

// A Documenter is a type that says what it is called in the reference pages, and how a value looks.
type Documenter interface {
	TypeDoc() (name, example string)
}

// A Percent is a share in hundredths, written with its sign: 12.5%. It lies between 0 and 100 unless the field has
// limits of its own.
type Percent float64

// ParsePercent reads a share.
func ParsePercent(text string) (Percent, error) {
	number, signed := strings.CutSuffix(text, "%")
	number = strings.TrimSpace(number)
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !looksNumeric(number) {
		return 0, fmt.Errorf("%q is not a share such as 12.5%%", text)
	}
	if !signed {
		return 0, fmt.Errorf("%q has no sign; write %s%%", text, text)
	}
	return Percent(f), nil
}

// Fraction returns the share as a number between 0 and 1.
func (c Percent) Fraction() float64 { return float64(c) / 100 }

// String returns c as a user would write it.
func (c Percent) String() string { return strconv.FormatFloat(float64(c), 'f', -1, 64) + "%" }

// TypeDoc implements Documenter.
func (Percent) TypeDoc() (name, example string) { return "percent", "12.5%" }

// DecodeConf implements Decoder.
func (c *Percent) DecodeConf(n *Node, p *Problems) { decodeText(n, p, c, ParsePercent) }

// Strings is a list of strings, for which a single string may be written without brackets.
type Strings []string

// TypeDoc implements Documenter.
func (Strings) TypeDoc() (name, example string) { return "string or list of strings", "[a, b]" }

// DecodeConf implements Decoder.
func (s *Strings) DecodeConf(n *Node, p *Problems) {
	if n.Kind() == Scalar {
		*s = Strings{n.text}
		return
	}
	var list []string
	Decode(n, &list, p)
	*s = list
}

// A Regexp is a regular expression in the syntax of RE2, of which named groups may be written (?P<name>…) or (?<name>…).
// The zero value has none: its embedded pointer is nil.
type Regexp struct{ *regexp.Regexp }

// ParseRegexp compiles a regular expression.
func ParseRegexp(text string) (Regexp, error) {
	re, err := regexp.Compile(text)
	if err != nil {
		return Regexp{}, errors.New(strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return Regexp{re}, nil
}

// String returns the expression, or "" for none.
func (r Regexp) String() string {
	if r.Regexp == nil {
		return ""
	}
	return r.Regexp.String()
}

// MarshalText writes the expression.
func (r Regexp) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Equal tells whether two expressions are written the same.
func (r Regexp) Equal(o Regexp) bool {
	return (r.Regexp == nil) == (o.Regexp == nil) && r.String() == o.String()
}

// TypeDoc implements Documenter.
func (Regexp) TypeDoc() (name, example string) {
	return "regular expression", `^/(?P<index>[^/]+)/_search$`
}

// DecodeConf implements Decoder.
func (r *Regexp) DecodeConf(n *Node, p *Problems) {
	if n.Kind() != Scalar {
		wrongType(n, p, "a regular expression")
		return
	}
	re, err := ParseRegexp(n.text)
	if err != nil {
		p.Errorf(n, "%s is no regular expression: %s", n.Quoted(), hidden(n, err)).Code = CodeValue
		return
	}
	*r = re
}

// A Network is a range of addresses, or a single one.
type Network struct{ netip.Prefix }

// ParseNetwork reads a network such as 10.0.0.0/8, or an address.
func ParseNetwork(text string) (Network, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return Network{netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())}, nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return Network{}, fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", text)
	}
	if prefix.Masked() != prefix {
		return Network{}, fmt.Errorf("%q has bits behind its prefix; did you mean %q?", text, prefix.Masked())
	}
	return Network{prefix}, nil
}

// TypeDoc implements Documenter.
func (Network) TypeDoc() (name, example string) { return "network", "10.0.0.0/8" }

// DecodeConf implements Decoder.
func (n *Network) DecodeConf(node *Node, p *Problems) { decodeText(node, p, n, ParseNetwork) }

// decodeText decodes a scalar by its text.
func decodeText[T Documenter](n *Node, p *Problems, into *T, parse func(string) (T, error)) {
	name, example := (*into).TypeDoc()
	if n.Kind() != Scalar {
		wrongType(n, p, fmt.Sprintf("a %s such as %s", name, example))
		return
	}
	value, err := parse(n.text)
	if err != nil {
		p.Errorf(n, "%s", hidden(n, err)).Code = CodeValue
		return
	}
	*into = value
}

// hidden returns the message of err, unless it could show what a variable holds.
func hidden(n *Node, err error) string {
	if n.FromVariable() {
		return "what " + n.written + " stands for cannot be read as this type of value"
	}
	return err.Error()
}

func wrongType(n *Node, p *Problems, want string) {
	p.Errorf(n, "want %s, found %s", want, n.found()).Code = CodeWrongType
}
