package elastic

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/conf"
)

// ClusterConfig is one item of the section elasticsearch: a cluster and how it is reached.
type ClusterConfig struct {
	// Name by which filters and pipelines refer to the cluster.
	Name string `conf:"name,required"`
	// A cluster that is switched off is never called: a flow that reaches it answers 503.
	Enabled bool `conf:"enabled"`
	// Address of a node, such as http://localhost:9200. A base path is kept. dns+http://es.test:9200 stands for a node at each
	// address that the name has, srv+http://_es._tcp.test for one at each of its SRV records; both are looked up again and again.
	Endpoint string `conf:"endpoint"`
	// Addresses of several nodes of one cluster.
	Endpoints conf.Strings `conf:"endpoints,alias=hosts"`
	// Classic: version of the cluster. It is found by itself and this is not used.
	Version string `conf:"version" deprecated:"found by itself; leave it out"`
	// Begins the names of the gateway's own indices and templates in this cluster.
	IndexPrefix string `conf:"index_prefix"`
	// Credentials for the gateway's own calls. They are never lent to callers unless the filter says so.
	BasicAuth BasicAuthConfig `conf:"basic_auth"`
	// API key for the gateway's own calls, as the cluster printed it: encoded.
	APIKey conf.Secret `conf:"api_key"`
	// Bearer token for the gateway's own calls.
	Bearer conf.Secret `conf:"bearer"`
	// Encryption towards the nodes.
	TLS NodeTLSConfig `conf:"tls"`
	// What nodes get as Host: upstream is their own authority, client is what the client sent, anything else is sent as it
	// stands, for proxies in front of nodes that tell clusters apart by name. Certificates are checked against the
	// address, or tls.server_name, all the same.
	Host string `conf:"host"`
	// Callers sign their requests (AWS Signature Version 4): everything a signature covers reaches the nodes as it came.
	// That makes host: client the default, leaves no_cache in the query for the node to see, and excludes base paths and
	// lending credentials. The gateway does not sign its own calls: switch discovery off.
	SignedRequests bool `conf:"signed_requests"`
	// Weights of nodes by address (host:port); others have 1. A weight of 0 sends nothing to a node.
	Weights map[string]int `conf:"weights"`
	// How nodes are found; see also the filter elasticsearch.
	Discovery DiscoveryConfig `conf:"discovery"`
	// How exchanges are spread over the nodes.
	Balance BalanceConfig `conf:"balance"`
	// When an exchange that failed is tried on another node.
	Retry RetryConfig `conf:"retry"`
}

// BasicAuthConfig are a user name and a password.
type BasicAuthConfig struct {
	// User name.
	Username string `conf:"username"`
	// Password.
	Password conf.Secret `conf:"password"`
}

// NodeTLSConfig says how nodes are encrypted to and proven. Certificates are checked unless told otherwise.
type NodeTLSConfig struct {
	// Certificates of authorities that nodes are checked against, in PEM. By default the system's.
	CAFile string `conf:"ca_file"`
	// Client certificate in PEM.
	CertFile string `conf:"cert_file"`
	// Its private key in PEM.
	KeyFile string `conf:"key_file"`
	// Name that certificates must carry, if not the one dialled.
	ServerName string `conf:"server_name"`
	// SHA-256 fingerprint of the authority's or the node's certificate in hexadecimal, with or without colons, as
	// Elasticsearch prints it when it starts for the first time.
	Fingerprint string `conf:"fingerprint,alias=ca_fingerprint"`
	// Show the client certificate on the connections of callers too. It is needed where nodes take no connection without
	// one; a cluster that maps certificates to users gives every caller the gateway's rights then.
	LendCertificate bool `conf:"lend_certificate"`
	// Accept any certificate. Anybody on the way can then read and change everything.
	InsecureSkipVerify bool `conf:"insecure_skip_verify,alias=skip_insecure_verify"`
}

// DiscoveryConfig says how nodes are found.
type DiscoveryConfig struct {
	// Ask the cluster for its nodes and use those that can be reached.
	Enabled bool `conf:"enabled"`
	// Time between two askings.
	Interval conf.Duration `conf:"interval"`
	// Nodes that get no traffic although the cluster lists them.
	Exclude ExcludeConfig `conf:"exclude"`
	// Addresses to dial in place of published ones, both as host:port, for networks that translate addresses.
	Rewrite map[string]string `conf:"rewrite"`
	// Classic: how the list of nodes is kept fresh.
	Refresh RefreshConfig `conf:"refresh"`
}

// ExcludeConfig picks nodes by any of its fields. If it leaves none it is not heeded.
type ExcludeConfig struct {
	// Names of nodes, in which * stands for any text.
	Names conf.Strings `conf:"names"`
	// Roles: a node that has one of them.
	Roles conf.Strings `conf:"roles"`
	// Attributes with their values: a node that has one of them.
	Attributes map[string]string `conf:"attributes"`
}

// RefreshConfig is the classic form of the discovery interval.
type RefreshConfig struct {
	// Ask again and again. Weir always does.
	Enabled bool `conf:"enabled"`
	// Time between two askings.
	Interval conf.Duration `conf:"interval"`
}

// SetDefaults makes c find nodes, every 30 seconds.
func (c *DiscoveryConfig) SetDefaults() {
	*c = DiscoveryConfig{Enabled: true, Interval: conf.Duration(30 * time.Second), Refresh: RefreshConfig{Enabled: true}}
}

// Values of ClusterConfig.Host that are no host.
const (
	hostUpstream = "upstream"
	hostClient   = "client"
)

// DefaultCluster returns the defaults of a cluster.
func DefaultCluster() ClusterConfig {
	c := ClusterConfig{Enabled: true, Host: hostUpstream}
	c.Discovery.SetDefaults()
	c.Balance.SetDefaults()
	c.Retry.SetDefaults()
	return c
}

// DecodeClusters reads the section elasticsearch. What is wrong goes to p; clusters with mistakes are left out.
func DecodeClusters(list *conf.Node, p *conf.Problems) map[string]*ClusterConfig {
	out := map[string]*ClusterConfig{}
	places := map[string]*conf.Node{}
	for _, n := range conf.ItemsOf(list, p) {
		c := DefaultCluster()
		in := p.In(strings.TrimSpace("elasticsearch " + n.Get("name").Scalar()))
		before, _ := p.Count()
		conf.Decode(n, &c, in)
		after, _ := p.Count()
		check := func() { c.check(n, in) }
		if after > before {
			in.Follow(n, check)
		} else {
			check()
		}
		if c.Name == "" {
			continue
		}
		if first := places[c.Name]; first != nil {
			in.Errorf(n.Get("name"), "cluster %q is defined twice; first at %s", c.Name, first.Pos())
			continue
		}
		places[c.Name] = n
		out[c.Name] = &c
	}
	return out
}

func (c *ClusterConfig) check(n *conf.Node, p *conf.Problems) {
	if c.Endpoint != "" {
		c.checkEndpoint(c.Endpoint, n.At("endpoint"), p)
	}
	for i, e := range c.Endpoints {
		c.checkEndpoint(e, n.At("endpoints", "hosts").Item(i), p)
	}
	if c.Enabled && len(c.Endpoints) == 0 && c.Endpoint == "" && !n.At("endpoint", "endpoints", "hosts").Broken() {
		p.Errorf(n, "no endpoint: give one such as http://localhost:9200")
	}
	first := ""
	for _, credentials := range []struct {
		name  string
		given bool
	}{{"basic_auth", c.BasicAuth.Username != ""}, {"api_key", !c.APIKey.IsZero()}, {"bearer", !c.Bearer.IsZero()}} {
		switch {
		case !credentials.given:
		case first == "":
			first = credentials.name
		default:
			p.Errorf(n.At(credentials.name), "%s and %s exclude each other", first, credentials.name)
		}
	}
	for _, s := range []struct {
		name   string
		secret conf.Secret
	}{{"api_key", c.APIKey}, {"bearer", c.Bearer}} {
		if err := checkCredential(s.secret.Reveal()); err != nil {
			p.Errorf(n.At(s.name), "%s: %v", s.name, err)
		}
	}
	c.checkHost(n, p)
	if c.TLS.InsecureSkipVerify {
		p.Warnf(n.At("tls.insecure_skip_verify", "tls.skip_insecure_verify"),
			"certificates of nodes are not checked: anybody on the way can read and change everything")
	}
	weights := n.At("weights")
	for _, addr := range slices.Sorted(maps.Keys(c.Weights)) {
		if err := checkAddr(addr); err != nil {
			p.Errorf(weights.Get(addr), "weight of %s: %v", addr, err)
		}
		if w := c.Weights[addr]; w < 0 {
			p.Errorf(weights.Get(addr), "weight %d of %s is negative", w, addr)
		} else if w > maxWeight {
			p.Errorf(weights.Get(addr), "weight %d of %s is over %d: only the ratio of weights counts", w, addr, maxWeight)
		}
	}
	c.checkDrained(weights, p)
	for i, pattern := range c.Discovery.Exclude.Names {
		if _, err := path.Match(pattern, ""); err != nil {
			p.Errorf(n.At("discovery.exclude.names").Item(i), "%q is no pattern such as es-old-*", pattern)
		}
	}
	rewrite := n.At("discovery.rewrite")
	for _, from := range slices.Sorted(maps.Keys(c.Discovery.Rewrite)) {
		for _, addr := range []string{from, c.Discovery.Rewrite[from]} {
			if err := checkAddr(addr); err != nil {
				p.Errorf(rewrite.Get(from), "rewrite: %v", err)
			}
		}
	}
}

// checkDrained warns of weights that leave the cluster no node that anything is sent to, other than those that discovery may find.
func (c *ClusterConfig) checkDrained(weights *conf.Node, p *conf.Problems) {
	list := c.endpoints()
	for _, e := range list {
		if w, ok := c.Weights[e.Addr]; !ok || w != 0 || e.Lookup != "" {
			return
		}
	}
	if len(list) > 0 {
		p.Warnf(weights, "all endpoints have the weight 0: nothing is sent to them")
	}
}

func (c *ClusterConfig) checkHost(n *conf.Node, p *conf.Problems) {
	if c.SignedRequests && n.Get("host").IsZero() {
		c.Host = hostClient
	}
	switch {
	case c.SignedRequests && c.Host != hostClient:
		p.Errorf(n.At("host"), "signatures cover the Host that the client sent: with signed_requests only host: client works")
	case c.Host == hostUpstream || c.Host == hostClient:
	default:
		if u, err := url.Parse("http://" + c.Host); err != nil || u.Host != c.Host || u.Hostname() == "" {
			p.Errorf(n.At("host"), "%q is neither upstream nor client nor a name such as search.test:9200", c.Host)
		}
	}
	for _, e := range c.endpoints() {
		if c.SignedRequests && e.Base != "" {
			p.Errorf(n.At("signed_requests"), "signatures cover the path: the base path %s of a node breaks them", e.Base)
			break
		}
	}
}

// checkAddr tells why addr is not the host:port of a node.
func checkAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return fmt.Errorf("%q is not an address such as 10.0.0.1:9200", addr)
	}
	return checkPort(port)
}

// checkPort tells why no node can be at a port.
func checkPort(port string) error {
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the port %q is not a number between 1 and 65535", port)
	}
	return nil
}

func (c *ClusterConfig) checkEndpoint(text string, n *conf.Node, p *conf.Problems) {
	e, err := ParseEndpoint(text)
	if err != nil {
		p.Errorf(n, "%s", err)
		return
	}
	if e.user != nil {
		p.Warnf(n, "credentials in an address end up in many places: use basic_auth")
	}
}

// endpoints returns the parsed addresses. They have been checked.
func (c *ClusterConfig) endpoints() []Endpoint {
	var out []Endpoint
	for _, text := range append([]string{c.Endpoint}, c.Endpoints...) {
		if text == "" {
			continue
		}
		if e, err := ParseEndpoint(text); err == nil {
			out = append(out, e)
		}
	}
	return out
}

// An Endpoint is the address of a node.
type Endpoint struct {
	Lookup string // dns+ or srv+ if it stands for several nodes; Addr has no port then for srv+
	TLS    bool
	Addr   string // host:port to dial
	Host   string // authority for the Host field and the name in the certificate
	Base   string // base path without a slash at its end, or empty
	user   *url.Userinfo
}

// ParseEndpoint reads an address such as https://es1.test:9200/base. The error never holds credentials.
func ParseEndpoint(text string) (Endpoint, error) {
	rest, lookup := strings.TrimSpace(text), ""
	for _, kind := range []string{lookupDNS, lookupSRV} {
		if after, ok := strings.CutPrefix(rest, kind); ok {
			rest, lookup = after, kind
			break
		}
	}
	u, err := url.Parse(rest)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") || u.RawQuery != "" || u.Fragment != "" {
		return Endpoint{}, fmt.Errorf("%q is not the address of a node such as http://localhost:9200", redactUserinfo(text))
	}
	e := Endpoint{Lookup: lookup, TLS: u.Scheme == "https", Host: u.Host, Base: strings.TrimRight(u.EscapedPath(), "/"), user: u.User}
	port := u.Port()
	if lookup == lookupSRV {
		if port != "" {
			return Endpoint{}, fmt.Errorf("%q: SRV records say the port themselves", redactUserinfo(text))
		}
		e.Addr = u.Hostname()
		return e, nil
	}
	switch {
	case port != "":
	case e.TLS:
		port = "443"
	default:
		port = "80"
	}
	if err := checkPort(port); err != nil {
		return Endpoint{}, fmt.Errorf("%q: %w", redactUserinfo(text), err)
	}
	e.Addr = net.JoinHostPort(u.Hostname(), port)
	if address, _, zoned := strings.Cut(u.Hostname(), "%"); zoned {
		e.Host = "[" + address + "]" // the zone means something on this machine only (RFC 6874 section 1)
		if u.Port() != "" {
			e.Host += ":" + u.Port()
		}
	}
	return e, nil
}

// String returns the address without credentials.
func (e Endpoint) String() string {
	scheme := "http://"
	if e.TLS {
		scheme = "https://"
	}
	return e.Lookup + scheme + e.Addr + e.Base
}

func redactUserinfo(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return text
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = "***@" + rest[at+1:]
	}
	return scheme + "://" + rest
}

// Identity says where the cluster is. It implements flows.Identified.
func (c *ClusterConfig) Identity() string {
	var b strings.Builder
	for _, e := range c.endpoints() {
		b.WriteString(e.String())
		b.WriteByte(' ')
	}
	return b.String()
}

// Secrets returns the cluster's secrets in clear text, for comparing configurations only.
func (c *ClusterConfig) Secrets() [3]string {
	return [3]string{c.BasicAuth.Password.Reveal(), c.APIKey.Reveal(), c.Bearer.Reveal()}
}
