package elastic

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/elastic/estest"
	"weir/internal/conf"
	"weir/internal/obs"
)

// An issuer makes certificates for 127.0.0.1 that it has signed.
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	i.cert, i.key = i.issue(t, "authority", true)
	return i
}

func (i *issuer) issue(t *testing.T, name string, authority bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: authority,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := i.cert, i.key
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// write writes a certificate of that name, and its key, into two files.
func (i *issuer) write(t *testing.T, name, certFile, keyFile string) {
	t.Helper()
	cert, key := i.issue(t, name, false)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert.Raw}, keyFile: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// pki is a node that knows users by the client certificates of their connections, as a realm for certificates does.
func (i *issuer) pki(t *testing.T) (url string, seen func(path string) string) {
	cert, key := i.issue(t, "node", false)
	var mu sync.Mutex
	users := map[string]string{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			user = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		mu.Lock()
		users[r.URL.Path] = user
		mu.Unlock()
		fmt.Fprint(w, `{"cluster_uuid":"u","version":{"number":"8.17.0"}}`)
	}))
	pool := x509.NewCertPool()
	pool.AddCert(i.cert)
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw, i.cert.Raw}, PrivateKey: key}},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: pool,
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL, func(path string) string {
		mu.Lock()
		defer mu.Unlock()
		return users[path]
	}
}

// TestClientCertificateIsTheGateways has a cluster map certificates to users: callers must not act as the gateway
// because their requests come over its connections.
func TestClientCertificateIsTheGateways(t *testing.T) {
	authority := newIssuer(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	authority.write(t, "gateway", certFile, keyFile)
	// As the cluster prints it: of its authority, with colons here.
	fingerprint := fmt.Sprintf("% X", sha256.Sum256(authority.cert.Raw))
	fingerprint = strings.ReplaceAll(fingerprint, " ", ":")
	f := func(lend string, certificate bool, want string) {
		t.Helper()
		url, user := authority.pki(t)
		text := fmt.Sprintf(", discovery: {enabled: false}, tls: {ca_fingerprint: '%s', cert_file: %s, key_file: %s%s}", fingerprint, certFile, keyFile, lend)
		k := openWith(t, text, func(o *PoolOptions) { o.Certificate = certificate }, url)
		waitFor(t, "the probe", func() bool { return user("/") != "" })
		if got := user("/"); got != "gateway" {
			t.Errorf("the gateway's own call came from %s", got)
		}
		if status, err := send(k, "GET", "/_search", ""); err != nil || status != 200 {
			t.Fatalf("%d, %v", status, err)
		}
		if got := user("/_search"); got != want {
			t.Errorf("%s: a caller's request came from %s, want %s", lend, got, want)
		}
	}
	f("", false, "nobody")
	f(", lend_certificate: true", false, "gateway")
	f("", true, "gateway")
}

// TestCertificatesAndCredentialsAreReadAgain replaces files while the gateway runs, once by something broken.
func TestCertificatesAndCredentialsAreReadAgain(t *testing.T) {
	authority := newIssuer(t)
	dir := t.TempDir()
	certFile, keyFile, secret := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"), filepath.Join(dir, "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(secret, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	authority.write(t, "first", certFile, keyFile)
	var mu sync.Mutex
	authorization := ""
	url, user := authority.pki(t)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		authorization = r.Header.Get("Authorization")
		mu.Unlock()
		fmt.Fprint(w, `{"cluster_uuid":"u"}`)
	}))
	defer plain.Close()
	caFile := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	tlsText := fmt.Sprintf(", tls: {ca_file: %s, cert_file: %s, key_file: %s}", caFile, certFile, keyFile)
	const off = ", discovery: {enabled: false}"
	certified := openWith(t, off+tlsText, nil, url)
	keyed := openWith(t, off+", api_key: 'file:"+secret+"'", nil, plain.URL)
	f := func(wantUser, wantAuthorization string) {
		t.Helper()
		certified.refresh()
		keyed.refresh()
		// The first look at a node, which the start has begun, may be the last to reach it.
		waitFor(t, fmt.Sprintf("calls of %q and %q", wantUser, wantAuthorization), func() bool {
			certified.checkAll()
			keyed.checkAll()
			mu.Lock()
			defer mu.Unlock()
			return user("/") == wantUser && authorization == wantAuthorization
		})
	}
	f("first", "ApiKey first")
	authority.write(t, "second", certFile, keyFile)
	write("second==")
	f("second", "ApiKey second==")
	authority.write(t, "third", certFile, filepath.Join(dir, "elsewhere.pem")) // its key is still to come
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	f("second", "ApiKey second==")
	authority.write(t, "third", certFile, keyFile)
	write("third")
	f("third", "ApiKey third")
	write("four\nth") // which no header field can hold
	f("third", "ApiKey third")
}

// TestCertificatesChangeWhileANodeJoins has a node made with the files from before, and become a member after the others have
// been told of new ones.
func TestCertificatesChangeWhileANodeJoins(t *testing.T) {
	authority := newIssuer(t)
	dir := t.TempDir()
	certFile, keyFile, caFile := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"), filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	authority.write(t, "first", certFile, keyFile)
	seed, _ := authority.pki(t)
	url, user := authority.pki(t)
	k := openWith(t, fmt.Sprintf(", discovery: {enabled: false}, tls: {ca_file: %s, cert_file: %s, key_file: %s}", caFile, certFile, keyFile), nil, seed)
	e, err := ParseEndpoint(url)
	if err != nil {
		t.Fatal(err)
	}
	n, err := k.newNode(e)
	if err != nil {
		t.Fatal(err)
	}
	authority.write(t, "second", certFile, keyFile)
	k.refresh()
	k.picker.Set(append(slices.Clone(k.picker.Members()), k.newMember(n)))
	k.refresh()
	if _, err := k.probe(t.Context(), n); err != nil || user("/") != "second" {
		t.Errorf("%v, the node sees %q", err, user("/"))
	}
}

// TestCredentialsWithSpecialCharacters sends what would break headers, addresses or YAML if it were not encoded.
func TestCredentialsWithSpecialCharacters(t *testing.T) {
	f := func(text, user, endpointUser, want string) {
		t.Helper()
		es := estest.New(t, estest.Options{Users: []estest.User{{Name: user, Password: want}}})
		k := openWith(t, ", discovery: {enabled: false}"+text, nil, "'"+strings.Replace(es.URL(), "//", "//"+endpointUser, 1)+"'")
		resp, err := (onNode{k, k.seeds[0]}).Perform(get(t, "/"))
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %v, %v", text, resp, err)
			return
		}
		resp.Body.Close()
	}
	t.Setenv("WEIR_TEST_PASSWORD", `a:b#c"d'e{f}$[[g]]é`)
	f(`, basic_auth: {username: u, password: "${WEIR_TEST_PASSWORD}"}`, "u", "", `a:b#c"d'e{f}$[[g]]é`)
	f(`, basic_auth: {username: 'ü ser', password: '::'}`, "ü ser", "", "::")
	f("", "u@x", "u%40x:p%3A%2F%23@", "p:/#")
}

func get(t *testing.T, path string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// openWith makes a cluster that is not started for endpoints in YAML.
func openWith(t *testing.T, text string, change func(*PoolOptions), endpoints ...string) *Cluster {
	t.Helper()
	n, p := conf.Parse("test.yml", "[{name: test, endpoints: ["+strings.Join(endpoints, ", ")+"]"+text+"}]", os.LookupEnv)
	c := DecodeClusters(n, p)["test"]
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	o := DefaultPool()
	o.Discovery = c.Discovery
	if change != nil {
		change(&o)
	}
	k, err := NewCluster(c, o, Deps{Metrics: obs.NewMetrics(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	k.Start()
	t.Cleanup(k.Close)
	return k
}

// TestHostPolicy has nodes told apart by Host, as ingress controllers do it, for the requests of callers and for the
// gateway's own calls, which would find the wrong cluster alive otherwise.
func TestHostPolicy(t *testing.T) {
	f := func(policy, clientHost, want, wantOwn string) {
		t.Helper()
		es := estest.New(t, estest.Options{})
		authority := es.Node(0).Addr()
		k := openWith(t, ", discovery: {enabled: false}"+policy, nil, es.URL())
		waitFor(t, "the probe", func() bool { return es.Count("/") > 0 })
		r := call("GET", "/_search", "")
		r.ClientHost = []byte(clientHost)
		resp, err := doCall(t, k, r)
		if err != nil || resp != 200 {
			t.Fatalf("%d, %v", resp, err)
		}
		for _, c := range es.Calls() {
			host := strings.Replace(want, "NODE", authority, 1)
			if c.Path != "/_search" {
				host = strings.Replace(wantOwn, "NODE", authority, 1)
			}
			if got := c.Header.Values("Host"); len(got) != 1 || got[0] != host {
				t.Errorf("%s: %s got the Host %q, want %q", policy, c.Path, got, host)
			}
		}
	}
	f("", "gw.test:8000", "NODE", "NODE")
	f(", host: upstream", "gw.test:8000", "NODE", "NODE")
	f(", host: client", "gw.test:8000", "gw.test:8000", "NODE")
	f(", host: client", "", "NODE", "NODE")
	f(", host: 'search.test:443'", "gw.test:8000", "search.test:443", "search.test:443")
	f(", signed_requests: true", "gw.test:8000", "gw.test:8000", "NODE")
}

// TestNamesAreDialledAnew has the name of a node looked up for each connection, and keeps zones of IPv6 out of Host.
func TestNamesAreDialledAnew(t *testing.T) {
	es := estest.New(t, estest.Options{InMemory: true})
	f := func(endpoint, dialled, host string) {
		t.Helper()
		n, p := conf.Parse("test.yml", "[{name: test, discovery: {enabled: false}, endpoint: '"+endpoint+"'}]", nil)
		c := DecodeClusters(n, p)["test"]
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		var got []string
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			got = append(got, network+" "+addr)
			return es.Dial(ctx, network, es.Node(0).Addr())
		}
		k, err := NewCluster(c, DefaultPool(), Deps{Metrics: obs.NewMetrics(), Logger: slog.New(slog.DiscardHandler), Dial: dial})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		es.Forget()
		for range 2 {
			if status, err := send(k, "GET", "/_search", ""); err != nil || status != 200 {
				t.Fatalf("%d, %v", status, err)
			}
			es.Inject(estest.Fault{Cut: estest.CloseAfterAnswer, Times: 1})
			if status, err := send(k, "GET", "/_search", ""); err != nil || status != 200 {
				t.Fatalf("%d, %v", status, err)
			}
		}
		if len(got) < 2 {
			t.Errorf("%s: dialled %q", endpoint, got)
		}
		for _, d := range got {
			if d != "tcp "+dialled {
				t.Errorf("%s: dialled %q, want %q", endpoint, d, dialled)
			}
		}
		if got := es.Calls()[0].Header.Get("Host"); got != host {
			t.Errorf("%s: Host %q, want %q", endpoint, got, host)
		}
	}
	f("http://es.test:9200", "es.test:9200", "es.test:9200")
	f("http://es.test", "es.test:80", "es.test")
	f("http://[2001:db8::1]:9200", "[2001:db8::1]:9200", "[2001:db8::1]:9200")
	f("http://[2001:db8::1]", "[2001:db8::1]:80", "[2001:db8::1]")
	f("http://[fe80::1%25eth0]:9200", "[fe80::1%eth0]:9200", "[fe80::1]:9200")
	f("http://[fe80::1%25eth0]", "[fe80::1%eth0]:80", "[fe80::1]")
}

func TestHostsAndSignaturesThatMakeNoSense(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		n, p := conf.Parse("test.yml", "[{name: test, "+text+"}]", nil)
		DecodeClusters(n, p)
		if got := fmt.Sprint(p.Err()); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	const endpoint = "endpoint: 'http://es.test:9200'"
	f(endpoint+", host: 'a b'", `"a b" is neither upstream nor client nor a name such as search.test:9200`)
	f(endpoint+", host: 'http://a'", "neither upstream nor client")
	f(endpoint+", host: ''", "neither upstream nor client")
	f(endpoint+", host: upstream, signed_requests: true", "only host: client works")
	f("endpoint: 'http://es.test:9200/base', signed_requests: true", "the base path /base of a node breaks them")
	f(endpoint+", host: '[::1]:9200'", "<nil>")
}
