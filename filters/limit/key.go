package limit

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"weir/elastic/api"
	"weir/flows"
	"weir/internal/conf"
	"weir/internal/obs"
	"weir/internal/wire"
)

// longestKey bounds what a key takes in the table. Of a longer one its digest is kept, which nobody can make another key
// with.
const longestKey = 128

// idBytes is how much of a key the number of its limit takes.
const idBytes = 8

// What the first byte of a key behind the number of its limit says.
const (
	keyAsItIs = iota
	keyDigest
)

// A selector is one part of a key.
type selector struct {
	kind  selectorKind
	text  string // as written
	name  string // of a header field, a parameter or a cookie, in lower case for the first; of a group
	group int    // position of the group in the hit of the limit's pattern
	bits4 int    // of an IPv4 address that count
	bits6 int    // of an IPv6 address that count
}

type selectorKind uint8

const (
	byIP selectorKind = iota
	byUser
	byAPIKey
	byIdentity
	byIndex
	byAPI
	byClass
	byMethod
	byHost
	byFlow
	byWholePath
	byHeader
	byCookie
	byQuery
	byPath
	byNothing // all callers share one key
)

// plainSelectors are the selectors that are one word.
var plainSelectors = map[string]selectorKind{
	"ip": byIP, "user": byUser, "api_key": byAPIKey, "identity": byIdentity, "index": byIndex, "api": byAPI, "class": byClass,
	"method": byMethod, "host": byHost, "flow": byFlow, "path": byWholePath, "global": byNothing,
}

// namingSelectors are those that name something behind a colon.
var namingSelectors = map[string]selectorKind{"header": byHeader, "cookie": byCookie, "query": byQuery, "path": byPath}

// knownSelectors is what messages list.
var knownSelectors = []string{
	"ip", "ip/BITS", "user", "api_key", "identity", "index", "api", "class", "method", "host", "flow", "path", "global", "header:NAME",
	"cookie:NAME", "query:NAME", "path:GROUP",
}

// networkOf6 is how much of an IPv6 address one caller has at hand whole (RFC 6177).
const networkOf6 = 64

// parseSelector reads a selector: a word, ip/24, or header:NAME and the like.
func parseSelector(text string) (selector, error) {
	if kind, ok := plainSelectors[text]; ok {
		return selector{kind: kind, text: text, bits4: 32, bits6: networkOf6}, nil
	}
	if bits, ok := strings.CutPrefix(text, "ip/"); ok {
		return parseNetwork(text, bits)
	}
	what, name, colon := strings.Cut(text, ":")
	kind, known := namingSelectors[what]
	switch {
	case colon && name == "":
		return selector{}, fmt.Errorf("%q names nothing behind the colon", text)
	case colon && kind == byHeader && !wire.ValidToken([]byte(name)):
		return selector{}, fmt.Errorf("%q is not the name of a header field: no request has it", name)
	case colon && known:
		if kind == byHeader {
			name = strings.ToLower(name)
		}
		return selector{kind: kind, text: text, name: name}, nil
	}
	if near, ok := conf.Nearest(text, knownSelectors); ok {
		return selector{}, fmt.Errorf("unknown selector %q; did you mean %q?", text, near)
	}
	return selector{}, fmt.Errorf("unknown selector %q: known are %s", text, strings.Join(knownSelectors, ", "))
}

// parseNetwork reads how many bits of an address count: of IPv4, and behind another slash of IPv6.
func parseNetwork(text, bits string) (selector, error) {
	s := selector{kind: byIP, text: text, bits6: networkOf6}
	four, six, both := strings.Cut(bits, "/")
	var err error
	if s.bits4, err = strconv.Atoi(four); err == nil && both {
		s.bits6, err = strconv.Atoi(six)
	}
	if err != nil || s.bits4 < 1 || s.bits4 > 32 || s.bits6 < 1 || s.bits6 > 128 {
		return s, fmt.Errorf("%q is no network: write ip/24 for IPv4 networks of 24 bits, or ip/24/48 to have 48 bits of IPv6 addresses as well", text)
	}
	return s, nil
}

// appendKey appends the key of x in the limit number id, and tells whether x lacks the value of one of the selectors. Each
// part has its length in front, so that no two lists of parts are one key. index is the index that the key is for, if a
// selector asks for it, and h what the limit's pattern found.
func appendKey(dst []byte, id uint64, selectors []selector, x *flows.Exchange, h hit, index []byte) (key []byte, missing bool) {
	start := len(dst)
	dst = append(binary.BigEndian.AppendUint64(dst, id), keyAsItIs)
	for i := range selectors {
		s := &selectors[i]
		before := len(dst)
		switch s.kind {
		case byIP:
			dst = s.appendAddr(dst, x.Request.ClientIP)
		case byUser:
			dst = appendPart(dst, x.Request.User)
		case byAPIKey:
			dst = appendAPIKey(dst, x)
		case byIdentity:
			dst = appendIdentity(dst, x)
		case byIndex:
			dst = appendPart(dst, index)
		case byAPI:
			dst = binary.BigEndian.AppendUint16(append(dst, 2), x.Call().ID)
		case byClass:
			dst = append(dst, 1, byte(x.Call().Class))
		case byMethod:
			dst = appendPart(dst, x.Request.Method)
		case byHost:
			dst = appendPart(dst, x.HostName())
		case byFlow:
			dst = appendPart(dst, x.Trace.Flow)
		case byWholePath:
			dst = appendPart(dst, x.DecodedPath())
		case byHeader:
			dst = appendPart(dst, x.Request.Header.Get(s.name))
		case byCookie:
			dst = appendPart(dst, cookie(x, s.name))
		case byQuery:
			value, _ := api.QueryValue(x.Request.Query, s.name)
			var room [256]byte
			dst = appendPart(dst, api.DecodeQuery(room[:0], value))
		case byPath:
			dst = appendPart(dst, h.groups[s.group].of(x.DecodedPath()))
		case byNothing:
			continue
		}
		missing = missing || dst[before] == 0
	}
	return digested(dst, start), missing
}

// digested puts the digest in the place of a key that is too long.
func digested(dst []byte, start int) []byte {
	if len(dst)-start <= longestKey {
		return dst
	}
	sum := sha256.Sum256(dst[start+idBytes+1:])
	return append(append(dst[:start+idBytes], keyDigest), sum[:]...)
}

// appendPart appends a part of a key, which cannot be taken for a part and the next.
func appendPart[T []byte | string](dst []byte, part T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(part))), part...)
}

// appendAddr appends as much of an address as counts. An IPv4 address in IPv6 clothes is that IPv4 address.
func (s *selector) appendAddr(dst []byte, addr netip.Addr) []byte {
	addr = addr.Unmap()
	bits := s.bits6
	if addr.Is4() {
		bits = s.bits4
	}
	network, err := addr.WithZone("").Prefix(bits)
	if err != nil { // no address at all
		return append(dst, 0)
	}
	if addr.Is4() {
		four := network.Addr().As4()
		return append(append(dst, 4), four[:]...)
	}
	sixteen := network.Addr().As16()
	return append(append(dst, 16), sixteen[:]...)
}

// appendAPIKey appends the id of an API key.
func appendAPIKey(dst []byte, x *flows.Exchange) []byte {
	var room [1024]byte
	return appendPart(dst, flows.APIKeyID(room[:0], x.Request.Header.Get("authorization")))
}

// What a part begins with that tells callers apart by identity.
const (
	identityUser   = 'u'
	identityAPIKey = 'k'
	identityAddr   = 'a'
)

// appendIdentity appends who calls: the user, else the id of the API key, else the address.
func appendIdentity(dst []byte, x *flows.Exchange) []byte {
	if len(x.Request.User) > 0 {
		return appendWho(dst, identityUser, x.Request.User)
	}
	var room [1024]byte
	if id := flows.APIKeyID(room[:0], x.Request.Header.Get("authorization")); len(id) > 0 {
		return appendWho(dst, identityAPIKey, id)
	}
	addr := callerAddr.appendAddr(room[:0], x.Request.ClientIP)
	if addr[0] == 0 {
		return append(dst, 0)
	}
	return appendWho(dst, identityAddr, addr[1:])
}

// callerAddr is the selector of the addresses by which callers are told apart.
var callerAddr = selector{kind: byIP, bits4: 32, bits6: networkOf6}

// appendWho appends the part of a key that is a caller of a kind.
func appendWho[T []byte | string](dst []byte, kind byte, who T) []byte {
	return append(append(binary.AppendUvarint(dst, uint64(1+len(who))), kind), who...)
}

// cookie returns the value of the first cookie of a name (RFC 6265 section 5.4), or nil.
func cookie(x *flows.Exchange, name string) []byte {
	for _, f := range x.Request.Header.Fields() {
		if !wire.EqualFold(f.Name, "cookie") {
			continue
		}
		for pair := range bytes.SplitSeq(f.Value, []byte{';'}) {
			if key, value, ok := bytes.Cut(bytes.TrimSpace(pair), []byte{'='}); ok && string(key) == name {
				return value
			}
		}
	}
	return nil
}

// appendValue appends the part of a key of a value that is written in the configuration.
func (s *selector) appendValue(dst []byte, text string) ([]byte, error) {
	switch s.kind {
	case byIP:
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return dst, fmt.Errorf("%q is no address", text)
		}
		return s.appendAddr(dst, addr), nil
	case byAPI:
		id, ok := api.ID(text)
		if !ok {
			return dst, fmt.Errorf("%q is no API", text)
		}
		return binary.BigEndian.AppendUint16(append(dst, 2), id), nil
	case byClass:
		c, ok := api.ParseClass(text)
		if !ok {
			return dst, fmt.Errorf("%q is no class of APIs", text)
		}
		return append(dst, 1, byte(c)), nil
	case byIdentity:
		return appendIdentityValue(dst, text)
	case byHost:
		return appendPart(dst, wire.AppendHostName(nil, []byte(text))), nil
	case byNothing:
		return dst, errors.New("global has no values")
	}
	return appendPart(dst, text), nil
}

// appendIdentityValue appends an identity as the configuration writes it: user:ann, api_key:ID or an address.
func appendIdentityValue(dst []byte, text string) ([]byte, error) {
	what, name, _ := strings.Cut(text, ":")
	switch what {
	case "user":
		return appendWho(dst, identityUser, name), nil
	case "api_key":
		return appendWho(dst, identityAPIKey, name), nil
	}
	addr, err := callerAddr.appendValue(nil, text)
	if err != nil {
		return dst, fmt.Errorf("%q is no identity: write user:NAME, api_key:ID or an address", text)
	}
	return appendWho(dst, identityAddr, addr[1:]), nil
}

// cutPart takes the first part of a key.
func cutPart(key []byte) (part, rest []byte) {
	n, size := binary.Uvarint(key)
	if size <= 0 || uint64(len(key)-size) < n {
		return nil, nil
	}
	return key[size : size+int(n)], key[size+int(n):]
}

// describeKey returns the values of a key, for people. What may be a secret is not shown.
func describeKey(selectors []selector, key []byte) []string {
	if len(key) <= idBytes || key[idBytes] == keyDigest {
		return []string{"(a long one)"}
	}
	var out []string
	rest := key[idBytes+1:]
	for i := range selectors {
		s := &selectors[i]
		if s.kind == byNothing {
			continue
		}
		var part []byte
		part, rest = cutPart(rest)
		out = append(out, s.describe(part))
	}
	return out
}

func (s *selector) describe(part []byte) string {
	switch {
	case len(part) == 0:
		return "(none)"
	case s.kind == byIP:
		return describeAddr(part, s.bits4, s.bits6)
	case s.kind == byAPI && len(part) == 2:
		return api.Name(binary.BigEndian.Uint16(part))
	case s.kind == byClass:
		return api.Class(part[0]).String()
	case s.kind == byIdentity && part[0] == identityUser:
		return "user:" + string(part[1:])
	case s.kind == byIdentity && part[0] == identityAPIKey:
		return "api_key:" + string(part[1:])
	case s.kind == byIdentity:
		return describeAddr(part[1:], 32, networkOf6)
	case s.kind == byHeader:
		return obs.RedactHeader(s.name, string(part))
	case s.kind == byCookie, s.kind == byQuery && obs.SecretName(s.name):
		return obs.Redacted
	}
	return obs.RedactText(string(part))
}

func describeAddr(part []byte, bits4, bits6 int) string {
	addr, ok := netip.AddrFromSlice(part)
	switch {
	case !ok:
		return "(none)"
	case addr.Is4() && bits4 == 32:
		return addr.String()
	case addr.Is4():
		return netip.PrefixFrom(addr, bits4).String()
	}
	return netip.PrefixFrom(addr, bits6).String()
}
