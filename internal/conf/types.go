package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
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

// A Duration is a length of time, written with its unit: 500ms, 1.5s, 1h30m, 2d, 1w. The units of Elasticsearch (d, h,
// m, s, ms, micros, nanos) and of Go are understood. A number without a unit is an error, except 0.
type Duration time.Duration

// durationUnits are in the order in which they must follow each other. The first name of a length is the one written.
var durationUnits = []struct {
	name string
	unit time.Duration
}{
	{"w", 7 * 24 * time.Hour},
	{"d", 24 * time.Hour},
	{"h", time.Hour},
	{"m", time.Minute},
	{"s", time.Second},
	{"ms", time.Millisecond},
	{"us", time.Microsecond},
	{"µs", time.Microsecond},
	{"micros", time.Microsecond},
	{"ns", time.Nanosecond},
	{"nanos", time.Nanosecond},
}

func durationUnit(name string) (time.Duration, bool) {
	for _, u := range durationUnits {
		if u.name == name {
			return u.unit, true
		}
	}
	return 0, false
}

// ParseDuration reads a duration. Larger units come first: 1h30m, not 30m1h.
func ParseDuration(text string) (Duration, error) {
	rest, negative := strings.CutPrefix(text, "-")
	if rest == "0" {
		return 0, nil
	}
	var total int64
	last := time.Duration(1<<63 - 1)
	for first := true; first || rest != ""; first = false {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789."))]
		rest = rest[len(digits):]
		name := rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyzµ"))]
		rest = rest[len(name):]
		if digits != "" && name == "" && rest == "" {
			return 0, fmt.Errorf("%q has no unit; write %ss, or another of w, d, h, m, s, ms", text, text)
		}
		unit, known := durationUnit(name)
		if !known || digits == "" || unit >= last {
			return 0, fmt.Errorf(`%q is not a duration such as 500ms, 1.5s, 1h30m or 2d%s`, text, instead(shortened(text)))
		}
		last = unit
		n, err := scaled(digits, int64(unit))
		if err == nil {
			total, err = calculate(total, '+', n)
		}
		if err != nil {
			return 0, fmt.Errorf("%q is longer than a duration can be (292 years), or not a number", text)
		}
	}
	if negative {
		total = -total
	}
	return Duration(total), nil
}

// spelledUnits are units of durations as people write them who know other programs.
var spelledUnits = map[string][]string{
	"w": {"week", "weeks"}, "d": {"day", "days"}, "h": {"hr", "hrs", "hour", "hours"}, "m": {"min", "mins", "minute", "minutes"},
	"s": {"sec", "secs", "second", "seconds"}, "ms": {"msec", "msecs", "millis", "millisecond", "milliseconds"},
}

var letters = regexp.MustCompile(`[a-z]+`)

// shortened returns a duration whose units are spelled out, or set apart by spaces, as it is to be written.
func shortened(text string) (string, bool) {
	short := letters.ReplaceAllStringFunc(strings.ToLower(strings.ReplaceAll(text, " ", "")), func(word string) string {
		for unit, spelled := range spelledUnits {
			if slices.Contains(spelled, word) {
				return unit
			}
		}
		return word
	})
	if short == text {
		return "", false
	}
	_, err := ParseDuration(short)
	return short, err == nil
}

// instead is the end of a message that knows what was meant.
func instead(meant string, known bool) string {
	if !known {
		return ""
	}
	return "; write " + meant
}

// Std returns d as the type of package time.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String returns d as a user would write it: 90s as 1m30s, 48h as 2d.
func (d Duration) String() string {
	if d == 0 {
		return "0s"
	}
	var b strings.Builder
	rest := uint64(d)
	if d < 0 {
		b.WriteByte('-')
		rest = -rest
	}
	for _, u := range durationUnits {
		if n := rest / uint64(u.unit); n > 0 {
			b.WriteString(strconv.FormatUint(n, 10))
			b.WriteString(u.name)
			rest %= uint64(u.unit)
		}
	}
	return b.String()
}

// TypeDoc implements Documenter.
func (Duration) TypeDoc() (name, example string) { return "duration", "1.5s" }

// DecodeConf implements Decoder.
func (d *Duration) DecodeConf(n *Node, p *Problems) { decodeText(n, p, d, ParseDuration) }

// Bytes is an amount of data, written as in Elasticsearch: 512kb, 10mb, 1gb, 1tb, where 1kb is 1024 bytes (KiB, MiB, …
// mean the same). A number without a unit counts bytes and may be arithmetic: 50*1024*1024.
type Bytes int64

// byteUnits have what Elasticsearch reads and, in front for each size, what it writes.
var byteUnits = []struct {
	name string
	unit int64
}{
	{"pb", 1 << 50},
	{"pib", 1 << 50},
	{"p", 1 << 50},
	{"tb", 1 << 40},
	{"tib", 1 << 40},
	{"t", 1 << 40},
	{"gb", 1 << 30},
	{"gib", 1 << 30},
	{"g", 1 << 30},
	{"mb", 1 << 20},
	{"mib", 1 << 20},
	{"m", 1 << 20},
	{"kb", 1 << 10},
	{"kib", 1 << 10},
	{"k", 1 << 10},
	{"b", 1},
}

// ParseBytes reads an amount of data. Only a number without a unit may be negative, for fields of the classic form in
// which -1 has a meaning.
func ParseBytes(text string) (Bytes, error) {
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	name := strings.ToLower(strings.TrimSpace(text[len(number):]))
	if name == "" {
		n, err := evaluate(text)
		if err != nil && !isArithmetic(text) {
			err = fmt.Errorf("%q is not an amount of data such as 512kb or 10mb", text)
		}
		return Bytes(n), err
	}
	for _, u := range byteUnits {
		if u.name == name {
			n, err := scaled(number, u.unit)
			if err != nil {
				return 0, fmt.Errorf("%q is not an amount of data: %w", text, err)
			}
			return Bytes(n), nil
		}
	}
	return 0, fmt.Errorf("%q is not an amount of data such as 512kb or 10mb: the units are b, kb, mb, gb, tb, pb", text)
}

// String returns b exactly, in the largest unit that leaves no rest: 1536 bytes are 1536b.
func (b Bytes) String() string {
	if b <= 0 {
		return strconv.FormatInt(int64(b), 10)
	}
	for _, u := range byteUnits {
		if int64(b)%u.unit == 0 {
			return strconv.FormatInt(int64(b)/u.unit, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// TypeDoc implements Documenter.
func (Bytes) TypeDoc() (name, example string) { return "bytes", "10mb" }

// DecodeConf implements Decoder.
func (b *Bytes) DecodeConf(n *Node, p *Problems) { decodeText(n, p, b, ParseBytes) }

// A Unit says what a Rate or an Amount counts.
type Unit uint8

// The units.
const (
	Count Unit = iota // things
	Data              // bytes
	Time              // milliseconds
)

var unitNames = [...]string{"a number", "an amount of data", "a length of time"}

// String returns what the unit is called in messages.
func (u Unit) String() string { return unitNames[u] }

// quantity writes n of the unit.
func (u Unit) quantity(n int64) string {
	switch u {
	case Data:
		return Bytes(n).String()
	case Time:
		return Duration(n * int64(time.Millisecond)).String()
	}
	return strconv.FormatInt(n, 10)
}

// parseQuantity reads a whole number, which may be arithmetic, an amount of data with its unit, or a length of time, of which the milliseconds
// count.
func parseQuantity(text string) (int64, Unit, error) {
	if n, err := evaluate(text); err == nil {
		return n, Count, nil
	}
	if strings.HasSuffix(strings.ToLower(text), "b") {
		amount, err := ParseBytes(text)
		return int64(amount), Data, err
	}
	if length, err := ParseDuration(text); err == nil {
		return length.Std().Milliseconds(), Time, nil
	}
	return 0, Count, fmt.Errorf("%q is not a whole number", text)
}

// A Rate is a number of events in a length of time, written 100/s, 6000/m, 1/10s, or, of data, 10mb/s, or, of time that
// something takes, 20s/s. The zero value is no rate.
type Rate struct {
	Events int64 // at least 1; bytes or milliseconds where Unit says so
	Per    time.Duration
	Unit   Unit
}

// ParseRate reads a rate.
func ParseRate(text string) (Rate, error) {
	count, per, slash := strings.Cut(text, "/")
	count, per = strings.TrimSpace(count), strings.TrimSpace(per)
	events, unit, err := parseQuantity(count)
	if !slash && err == nil {
		return Rate{}, fmt.Errorf("%q has no length of time; write %s/s, or another such as 6000/m", text, text)
	}
	if !slash {
		return Rate{}, fmt.Errorf("%q is not a rate such as 100/s, 6000/m or 1/10s", text)
	}
	if err != nil {
		if whole, ok := wholeRate(count, per); ok {
			return Rate{}, fmt.Errorf("%q is not a whole number in a length of time; write %s", text, whole)
		}
		return Rate{}, fmt.Errorf("%q is not a rate such as 100/s: %w", text, err)
	}
	if events < 1 {
		return Rate{}, fmt.Errorf("the rate %q allows nothing; it must be at least one in some length of time", text)
	}
	if per != "" && (per[0] < '0' || per[0] > '9') {
		per = "1" + per
	}
	length, err := ParseDuration(per)
	if err != nil || length <= 0 {
		short, known := shortened(per)
		if rest, one := strings.CutPrefix(short, "1"); one && strings.Trim(rest, "0123456789.") == rest {
			short = rest // 1/s, not 1/1s
		}
		return Rate{}, fmt.Errorf("%q is not a rate such as 100/s, 6000/m or 1/10s%s", text, instead(count+"/"+short, known))
	}
	return Rate{Events: events, Per: length.Std(), Unit: unit}, nil
}

// wholeRate returns the rate of a number with a fraction, such as 0.5 in s, as one of a whole number: 1/2s.
func wholeRate(count, per string) (string, bool) {
	whole, fraction, _ := strings.Cut(count, ".")
	if per != "" && (per[0] < '0' || per[0] > '9') {
		per = "1" + per
	}
	length, err := ParseDuration(per)
	if err != nil || length <= 0 || length > Duration(24*time.Hour) || len(fraction) > 3 {
		return "", false
	}
	n, err := strconv.ParseUint(whole+fraction, 10, 31)
	if err != nil || n == 0 {
		return "", false
	}
	times := uint64(1)
	for range fraction {
		times *= 10
	}
	for _, factor := range [...]uint64{2, 2, 2, 5, 5, 5} {
		if n%factor == 0 && times%factor == 0 {
			n, times = n/factor, times/factor
		}
	}
	return strconv.FormatUint(n, 10) + "/" + (length * Duration(times)).String(), true
}

// PerSecond returns how many events a second r is, and 0 for no rate.
func (r Rate) PerSecond() float64 {
	if r.Per == 0 {
		return 0
	}
	return float64(r.Events) / r.Per.Seconds()
}

// String returns r as a user would write it, and "" for no rate.
func (r Rate) String() string {
	if r.Per == 0 {
		return ""
	}
	per := Duration(r.Per).String()
	if unit, one := strings.CutPrefix(per, "1"); one {
		if _, known := durationUnit(unit); known {
			per = unit
		}
	}
	return r.Unit.quantity(r.Events) + "/" + per
}

// TypeDoc implements Documenter.
func (Rate) TypeDoc() (name, example string) { return "rate", "100/s" }

// DecodeConf implements Decoder.
func (r *Rate) DecodeConf(n *Node, p *Problems) { decodeText(n, p, r, ParseRate) }

// An Amount is how much of something: 100, 10mb or 5s. The zero value is none.
type Amount struct {
	N    int64 // bytes or milliseconds where Unit says so
	Unit Unit
}

// ParseAmount reads an amount, at least 1.
func ParseAmount(text string) (Amount, error) {
	n, unit, err := parseQuantity(text)
	if err == nil && n < 1 {
		err = fmt.Errorf("%q is nothing; want at least 1", text)
	}
	if err != nil {
		return Amount{}, err
	}
	return Amount{N: n, Unit: unit}, nil
}

// String returns a as a user would write it, and "" for none.
func (a Amount) String() string {
	if a == (Amount{}) {
		return ""
	}
	return a.Unit.quantity(a.N)
}

// TypeDoc implements Documenter.
func (Amount) TypeDoc() (name, example string) { return "amount", "100" }

// DecodeConf implements Decoder.
func (a *Amount) DecodeConf(n *Node, p *Problems) { decodeText(n, p, a, ParseAmount) }

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

// A Secret is text that is never printed: neither by fmt, nor in JSON, nor in logs. In the configuration it is the text
// itself, best filled in from a variable, or file:/path for the contents of a file that is read when the secret is
// needed. The zero value is no secret.
type Secret struct {
	// text is behind a pointer because fmt prints the fields of a Secret that stands in an unexported field without
	// asking for its String method.
	text *string
}

const filePrefix = "file:"

// NewSecret returns a secret with the given text, or none for "".
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// IsZero tells whether there is no secret.
func (s Secret) IsZero() bool { return s.text == nil }

// Reveal returns the text, and "" for no secret and for one that is kept in a file: see Resolve.
func (s Secret) Reveal() string {
	if s.text == nil || s.File() != "" {
		return ""
	}
	return *s.text
}

// File returns the path of the file that keeps the secret, or "".
func (s Secret) File() string {
	if s.text == nil {
		return ""
	}
	path, is := strings.CutPrefix(*s.text, filePrefix)
	if !is {
		return ""
	}
	return path
}

// Resolve returns the text, read with readFile where the secret is kept in a file. A line end after it is left out, since
// editors add one.
func (s Secret) Resolve(readFile func(name string) ([]byte, error)) (string, error) {
	path := s.File()
	if path == "" {
		return s.Reveal(), nil
	}
	content, err := readFile(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	text := strings.TrimRight(string(content), "\r\n")
	if text == "" {
		return "", fmt.Errorf("read secret: %s is empty", path)
	}
	return text, nil
}

// Equal tells whether two secrets are written the same.
func (s Secret) Equal(o Secret) bool {
	if s.text == nil || o.text == nil {
		return s.text == o.text
	}
	return *s.text == *o.text
}

// String returns "***", or "" for no secret.
func (s Secret) String() string {
	if s.text == nil {
		return ""
	}
	return "***"
}

// GoString returns what String returns.
func (s Secret) GoString() string { return s.String() }

// MarshalJSON writes what String returns.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// LogValue returns what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// TypeDoc implements Documenter.
func (Secret) TypeDoc() (name, example string) { return "secret", "${PASSWORD}" }

// DecodeConf implements Decoder. A secret that stands in the file itself is a warning.
func (s *Secret) DecodeConf(n *Node, p *Problems) {
	if n.Kind() != Scalar {
		wrongType(n, p, "a secret")
		return
	}
	*s = NewSecret(n.text)
	if n.text == filePrefix {
		p.Errorf(n, "%q names no file; write file:/path", filePrefix).Code = CodeValue
		return
	}
	if !s.IsZero() && s.File() == "" && !n.FromVariable() {
		p.Warnf(n, "the secret stands in clear text; write ${NAME} for an environment variable, or file:/path").Code = CodeClearText
	}
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
