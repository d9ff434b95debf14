package flows

import (
	"bytes"
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"

	"weir/internal/conf"
	"weir/internal/wire"
)

// ForwardedMode says which fields tell a node who called.
type ForwardedMode string

// The modes.
const (
	ForwardedX    ForwardedMode = "x_forwarded" // X-Forwarded-For, -Host and -Proto, as most proxies write them
	ForwardedRFC  ForwardedMode = "rfc7239"     // Forwarded
	ForwardedBoth ForwardedMode = "both"
	ForwardedOff  ForwardedMode = "off" // the client's own fields pass as they are
)

// identityFields are the fields by which clusters take a caller's word for who it is, when it comes from a proxy that they
// trust: proxy authentication and impersonation of the security plugin (opensearch-project/security#165), run-as of
// Elasticsearch, and what proxies in front of both write.
var identityFields = []string{
	"x-proxy-user", "x-proxy-roles", "x-proxy-ext-*", "es-security-runas-user", "opendistro_security_impersonate_as",
	"x-remote-user", "remote-user", "x-webauth-user", "x-real-ip", "x-ssl-client-*", "x-client-cert*",
}

// A callers policy says whom an entry takes at its word, and what nodes are told of callers.
type callers struct {
	trusted  []netip.Prefix
	identity fieldNames // of the fields that only trusted peers may send because they say who the caller is
	claimed  fieldNames // of these, and of those that say where it came from
	named    []byte     // the names of identity, as text
	x, rfc   bool
	via      []byte
}

// fieldNames are names of header fields, in any case, and with _ for - as well: some servers take one for the other.
type fieldNames struct {
	exact    []string
	prefixes []string
	first    [256]bool // the bytes with which one of either may begin
}

// add adds names; one that ends in * stands for all that begin so.
func (n *fieldNames) add(names ...string) {
	for _, name := range names {
		name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
		prefix, is := strings.CutSuffix(name, "*")
		switch {
		case prefix == "":
			continue
		case is:
			n.prefixes = append(n.prefixes, prefix)
		default:
			n.exact = append(n.exact, name)
		}
		n.first[name[0]], n.first[name[0]&^0x20] = true, true
	}
}

// text returns the names in n in one order, each with what it stands for and an end that no name has.
func (n *fieldNames) text() []byte {
	list := slices.Clone(n.exact)
	for _, p := range n.prefixes {
		list = append(list, p+"*")
	}
	slices.Sort(list)
	return []byte(strings.Join(slices.Compact(list), "\n"))
}

// has tells whether name is one of n.
func (n *fieldNames) has(name []byte) bool {
	if len(name) == 0 || !n.first[name[0]] {
		return false
	}
	if bytes.IndexByte(name, '_') >= 0 {
		name = bytes.ReplaceAll(name, []byte("_"), []byte("-"))
	}
	for _, e := range n.exact {
		if wire.EqualFold(name, e) {
			return true
		}
	}
	for _, p := range n.prefixes {
		if len(name) >= len(p) && wire.EqualFold(name[:len(p)], p) {
			return true
		}
	}
	return false
}

func newCallers(c *EntryConfig) callers {
	k := callers{x: c.Forwarded == ForwardedX || c.Forwarded == ForwardedBoth, rfc: c.Forwarded == ForwardedRFC || c.Forwarded == ForwardedBoth}
	for _, n := range c.TrustedProxies {
		k.trusted = append(k.trusted, n.Prefix)
	}
	k.identity.add(c.IdentityFields...)
	k.claimed.add(c.IdentityFields...)
	k.named = k.identity.text()
	if k.x || k.rfc { // what is written in one form must not be contradicted in the other
		k.claimed.add("x-forwarded", "x-forwarded-*", "forwarded")
	}
	if c.Via != "" {
		k.via = []byte(c.Via)
	}
	return k
}

// trusts tells whether addr is that of a proxy whose word counts.
func (k *callers) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(k.trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// claims tells whether a field says who the caller is, or where it came from.
func (k *callers) claims(name []byte) bool { return k.claimed.has(name) }

// judge takes a trusted peer at its word about who sent r, and drops what others say. claims tells whether anything is said.
func (k *callers) judge(r *Request, trusted, claims bool) {
	switch {
	case trusted:
		r.ClientIP = k.clientIP(r.Peer.Addr(), &r.Header)
	case claims:
		r.Header.Filter(func(f wire.Field) bool { return !k.claims(f.Name) })
	}
}

// Admit makes of x, which is only to be explained, what an entry makes of a request that comes from peer.
func (c *EntryConfig) Admit(x *Exchange, peer netip.Addr) {
	k := newCallers(c)
	x.callers = &k
	x.Request.Peer = netip.AddrPortFrom(peer, 0)
	x.Request.Header.DropHopByHop()
	k.judge(&x.Request, k.trusts(peer), true)
}

// Identifies tells whether a header field of that name, in any case, is one of the entry's identity_fields.
func (x *Exchange) Identifies(name []byte) bool {
	return x.callers != nil && x.callers.identity.has(name)
}

// IdentityFields returns the names of the entry's identity_fields in lower case, one a line, in order; nil if there is no entry. It
// must not be changed.
func (x *Exchange) IdentityFields() []byte {
	if x.callers == nil {
		return nil
	}
	return x.callers.named
}

// clientIP returns the caller's address as the proxies say it that stand between: from the peer on, the first that is not
// trusted, reading X-Forwarded-For from its end. What stands further left anybody may have written.
func (k *callers) clientIP(peer netip.Addr, h *wire.Header) netip.Addr {
	client := peer
	fields := h.Fields()
	for i := len(fields) - 1; i >= 0; i-- {
		if !wire.EqualFold(fields[i].Name, "x-forwarded-for") {
			continue
		}
		for value := fields[i].Value; len(value) > 0; {
			comma := bytes.LastIndexByte(value, ',')
			addr, ok := parseHop(string(bytes.TrimSpace(value[comma+1:])))
			if !ok {
				return client
			}
			if client = addr; !k.trusts(addr) {
				return client
			}
			value = value[:max(comma, 0)]
		}
	}
	return client
}

// parseHop reads an address of X-Forwarded-For, with or without a port.
func parseHop(text string) (netip.Addr, bool) {
	bare := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		bare = text[1 : len(text)-1]
	}
	addr, err := netip.ParseAddr(bare)
	if err != nil {
		ap, err := netip.ParseAddrPort(text)
		if err != nil {
			return netip.Addr{}, false
		}
		addr = ap.Addr()
	}
	return addr.Unmap(), true
}

var (
	forwardedFor   = []byte("X-Forwarded-For")
	forwardedHost  = []byte("X-Forwarded-Host")
	forwardedProto = []byte("X-Forwarded-Proto")
	forwardedName  = []byte("Forwarded")
	viaName        = []byte("Via")
	protos         = [...][]byte{[]byte("http"), []byte("https")}
)

// Forwarded appends to dst the fields that tell a node who called, as the entry's forwarded and via say. They are valid as
// long as the exchange runs; each replaces the fields of its name in the request.
func (x *Exchange) Forwarded(dst []wire.Field) []wire.Field {
	if x.callers == nil {
		return dst
	}
	k, r := x.callers, &x.Request
	proto := protos[0]
	if r.TLS {
		proto = protos[1]
	}
	text := x.told[:0]
	add := func(name []byte, start int) {
		dst = append(dst, wire.Field{Name: name, Value: text[start:len(text):len(text)]})
	}
	peer := r.Peer.Addr()
	if k.x {
		start := len(text)
		text = peer.AppendTo(x.prior(text, "x-forwarded-for"))
		add(forwardedFor, start)
		if r.Header.Get("x-forwarded-host") == nil && len(r.Host) > 0 {
			dst = append(dst, wire.Field{Name: forwardedHost, Value: r.Host})
		}
		if r.Header.Get("x-forwarded-proto") == nil {
			dst = append(dst, wire.Field{Name: forwardedProto, Value: proto})
		}
	}
	if k.rfc {
		start := len(text)
		text = append(x.prior(text, "forwarded"), "for="...)
		if peer.Is6() {
			text = append(peer.AppendTo(append(text, `"[`...)), `]"`...)
		} else {
			text = peer.AppendTo(text)
		}
		text = append(append(text, ";proto="...), proto...)
		if len(r.Host) > 0 && bytes.IndexByte(r.Host, '"') < 0 && bytes.IndexByte(r.Host, '\\') < 0 {
			text = append(append(append(text, `;host="`...), r.Host...), '"')
		}
		add(forwardedName, start)
	}
	if k.via != nil {
		start := len(text)
		version := "1.1 "
		if r.HTTP10 {
			version = "1.0 "
		}
		text = append(append(x.prior(text, "via"), version...), k.via...)
		add(viaName, start)
	}
	x.told = text
	return dst
}

// prior appends what the proxies before wrote into the fields called name.
func (x *Exchange) prior(text []byte, name string) []byte {
	for _, f := range x.Request.Header.Fields() {
		if len(f.Name) == len(name) && wire.EqualFold(f.Name, name) {
			text = append(append(text, f.Value...), ", "...)
		}
	}
	return text
}

// APIKeyID returns the id of the API key in an Authorization field, which is what stands before the colon, never the secret
// behind it; nil for other credentials. dst is memory for it.
func APIKeyID(dst, authorization []byte) []byte {
	_, id := claim(dst, authorization, "apikey ")
	return id
}

// longestClaim is the longest Authorization field, in bytes, that is looked into.
const longestClaim = 1024

// claim returns what stands before the colon of credentials of a scheme, which is whom they say they are of, or nil. dst is
// memory, which comes back grown. Nodes take credentials without their padding too (java.util.Base64), so no spelling may get
// around a rule about a caller.
func claim(dst, authorization []byte, scheme string) (grown, name []byte) {
	if len(authorization) < len(scheme) || len(authorization) > longestClaim || !wire.EqualFold(authorization[:len(scheme)], scheme) {
		return dst, nil
	}
	coded := bytes.TrimRight(bytes.TrimSpace(authorization[len(scheme):]), "=")
	plain, err := base64.RawStdEncoding.AppendDecode(dst[:0], coded)
	name, _, found := bytes.Cut(plain, []byte{':'})
	if err != nil || !found {
		return plain, nil
	}
	return plain, name
}

// defaultIdentity returns identityFields as a configuration has them.
func defaultIdentity() conf.Strings { return slices.Clone(identityFields) }
