package transform

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
)

// RewriteAddressesConfig is the configuration of rewrite_addresses.
type RewriteAddressesConfig struct {
	// Addresses (host:port) under which clients reach the gateway. The first node of an answer gets the first, the
	// second the second, and so on, from the front again when there are more nodes. None means the address that the
	// client itself used: the Host field of its request.
	Addresses conf.Strings `conf:"addresses"`
	// Longest answer that is rewritten; a longer one is refused with 502, because clients that read it would leave the
	// gateway. Only _cluster/state of a large cluster comes near.
	MaxSize conf.Bytes `conf:"max_size" min:"1"`
}

type rewriteAddresses struct {
	addresses []string
	maxSize   int64
}

// RewriteAddresses declares the filter rewrite_addresses.
func RewriteAddresses() flows.Factory[RewriteAddressesConfig] {
	return flows.Factory[RewriteAddressesConfig]{
		Name: "rewrite_addresses", Family: "transform",
		Summary: "Writes the gateway's address in place of the nodes' into the answers by which clients look for nodes (sniffing), so that they stay with the gateway: " +
			"the http section of _nodes/http, _nodes/_all/http and whatever else _nodes answers, and the transport_address of the nodes in _cluster/state. " +
			"Stands above the filter that answers. It reads JSON, which sniffing clients ask for; YAML, CBOR and SMILE stay as they are.",
		Default: func() RewriteAddressesConfig { return RewriteAddressesConfig{MaxSize: 64 << 20} },
		Build: func(b *flows.Builder, c RewriteAddressesConfig) flows.Filter {
			for _, a := range c.Addresses {
				if _, _, err := splitAddress(a); err != nil {
					b.Errorf("addresses", "%q: %v, want host:port", a, err)
				}
			}
			return &rewriteAddresses{addresses: c.Addresses, maxSize: int64(c.MaxSize)}
		},
		Examples: []flows.Example{
			{Title: "Sniffing clients stay at the address that they came by", YAML: "- rewrite_addresses: {}"},
			{Title: "Two gateways, behind names of their own", YAML: "- rewrite_addresses: {addresses: [\"gw1.example.com:8000\", \"gw2.example.com:8000\"]}"},
		},
	}
}

// splitAddress takes an address of host and port apart.
func splitAddress(address string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(address)
	if err != nil {
		var bad *net.AddrError
		if errors.As(err, &bad) {
			err = errors.New(bad.Err)
		}
		return "", "", err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", errors.New("the port is not a number between 1 and 65535")
	}
	if host == "" {
		return "", "", errors.New("the host is missing")
	}
	return host, port, nil
}

// Where addresses stand in an answer, as a path of names; * is any. Lists stand under the path of their elements.
var (
	nodesInfoAddresses = [][]string{
		{"nodes", "*", "http", "publish_address"},
		{"nodes", "*", "http", "bound_address"},
	}
	clusterStateAddresses = [][]string{{"nodes", "*", "transport_address"}}
)

func (f *rewriteAddresses) Serve(x *flows.Exchange, next flows.Handler) error {
	var places [][]string
	switch x.Call().Name {
	case "nodes.info":
		places = nodesInfoAddresses
	case "cluster.state":
		places = clusterStateAddresses
	default:
		return next.Serve(x)
	}
	x.Request.Header.Del("accept-encoding") // what comes coded could not be read
	if err := next.Serve(x); err != nil {
		return err
	}
	if x.Tracing || x.Response.Status != 200 || !isJSON(x.Response.Header.Get("content-type")) {
		return nil
	}
	addresses := f.addresses
	if len(addresses) == 0 {
		own, ok := ownAddress(string(x.Request.Host), x.Request.TLS)
		if !ok {
			return elastic.Errorf(400, "illegal_argument_exception", "there is no Host by which the gateway could name itself in the answer to [%s]", x.Request.Path)
		}
		addresses = []string{own}
	}
	body, err := x.Response.Body.Bytes(f.maxSize)
	switch {
	case errors.Is(err, flows.ErrBodyTooLarge):
		return elastic.Errorf(502, "content_too_long_exception",
			"the answer to [%s] is over the %d bytes in which addresses are rewritten", x.Request.Path, f.maxSize)
	case errors.Is(err, flows.ErrBudget):
		return elastic.Errorf(429, "circuit_breaking_exception", "no memory left to rewrite the addresses in the answer to [%s]", x.Request.Path).Because(err)
	case err != nil:
		return elastic.Errorf(502, "bad_gateway_exception", "the answer to [%s] broke off", x.Request.Path).Because(err)
	}
	if rewritten, ok := replaceAddresses(body, places, addresses); ok {
		x.Response.Body.Replace(rewritten)
	}
	return nil
}

// ownAddress returns the address by which a client came, with the scheme's port if its Host field names none.
func ownAddress(host string, tls bool) (string, bool) {
	if _, _, err := splitAddress(host); err == nil {
		return host, true
	}
	port := "80"
	if tls {
		port = "443"
	}
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	if host == "" {
		return "", false
	}
	return net.JoinHostPort(host, port), true
}

// isJSON tells whether a media type is JSON, the versioned one of Elasticsearch included.
func isJSON(mediaType []byte) bool {
	mediaType, _, _ = bytes.Cut(mediaType, []byte{';'})
	mediaType = bytes.ToLower(bytes.TrimSpace(mediaType))
	return bytes.Equal(mediaType, []byte("application/json")) || bytes.Equal(mediaType, []byte("application/vnd.elasticsearch+json"))
}

// replaceAddresses returns body with the strings at places replaced: those of the first node by the first address, and so
// on. All other bytes stay as they are. It returns false for what is no JSON.
func replaceAddresses(body []byte, places [][]string, addresses []string) ([]byte, bool) {
	r := addressReplacer{dec: json.NewDecoder(bytes.NewReader(body)), body: body, places: places, addresses: addresses}
	r.dec.UseNumber()
	if err := r.value(); err != nil {
		return nil, false
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, false
	}
	return append(r.out, body[r.copied:]...), true
}

// maxDepth bounds the nesting of answers that are read; nodes nest settings and mappings to a few dozen levels.
const maxDepth = 1000

// An addressReplacer walks over a JSON text.
type addressReplacer struct {
	dec       *json.Decoder
	body, out []byte
	copied    int64    // how much of body stands in out, or was replaced
	path      []string // names from the root to the value at hand
	node      int      // number of the node at hand, from 1
	depth     int
	places    [][]string
	addresses []string
}

// value walks over one value, with all that is in it.
func (r *addressReplacer) value() error {
	begin := r.dec.InputOffset()
	token, err := r.dec.Token()
	if err != nil {
		return err
	}
	switch token := token.(type) {
	case string:
		if slices.ContainsFunc(r.places, r.at) {
			r.replace(begin, r.dec.InputOffset())
		}
	case json.Delim:
		if r.depth++; r.depth > maxDepth {
			return errors.New("nested too deeply")
		}
		defer func() { r.depth-- }()
		for r.dec.More() {
			if token == '[' {
				err = r.value()
			} else {
				err = r.member()
			}
			if err != nil {
				return err
			}
		}
		_, err = r.dec.Token() // the end
	}
	return err
}

// member walks over a name and its value.
func (r *addressReplacer) member() error {
	token, err := r.dec.Token()
	if err != nil {
		return err
	}
	name, _ := token.(string)
	r.path = append(r.path, name)
	if len(r.path) == 2 && r.path[0] == "nodes" {
		r.node++
	}
	err = r.value()
	r.path = r.path[:len(r.path)-1]
	return err
}

// at tells whether the value at hand stands at a place.
func (r *addressReplacer) at(place []string) bool {
	return slices.EqualFunc(place, r.path, func(want, name string) bool { return want == "*" || want == name })
}

// replace writes the address of the node at hand over a string that ends at end. Between begin and its first quote there
// is only white space and punctuation.
func (r *addressReplacer) replace(begin, end int64) {
	begin += int64(bytes.IndexByte(r.body[begin:end], '"'))
	r.out = append(r.out, r.body[r.copied:begin]...)
	address, _ := json.Marshal(r.addresses[(r.node-1)%len(r.addresses)]) // a string always can be
	r.out = append(r.out, address...)
	r.copied = end
}
