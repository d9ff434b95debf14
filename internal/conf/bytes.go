package conf

import (
	"fmt"
	"strconv"
	"strings"
)

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
