package flows_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/flows"
	"weir/flows/flowstest"
	"weir/internal/conf"
)

// seen is what a flow saw of a request, and what it would tell a node.
type seen struct{ ip, peer, fields, told, cert string }

// observing serves a flow that notes what it sees.
func observing(t *testing.T, shape func(*flows.EntryConfig)) (*flowstest.Gateway, *seen) {
	t.Helper()
	s := new(seen)
	g := newGateway(t, oneFlow, testRegistry(func(x *flows.Exchange) {
		*s = seen{ip: x.Request.ClientIP.String(), peer: x.Request.Peer.Addr().String()}
		for _, f := range x.Request.Header.Fields() {
			if string(f.Name) != "Host" {
				s.fields += string(f.Name) + "=" + string(f.Value) + ";"
			}
		}
		for _, f := range x.Forwarded(nil) {
			s.told += string(f.Name) + "=" + string(f.Value) + ";"
		}
		if c := x.Request.Cert; c != nil {
			s.cert = c.Subject.CommonName
		}
	}), shape)
	return g, s
}

func trust(networks ...string) func(*flows.EntryConfig) {
	return func(c *flows.EntryConfig) {
		for _, text := range networks {
			n, err := conf.ParseNetwork(text)
			if err != nil {
				panic(err) // a mistake in the test
			}
			c.TrustedProxies = append(c.TrustedProxies, n)
		}
	}
}

// Caches ask an exchange which fields of its entry say who asks.
func TestIdentifies(t *testing.T) {
	var got []bool
	named := ""
	g := newGateway(t, oneFlow, testRegistry(func(x *flows.Exchange) {
		for _, name := range []string{"X-Who", "x-WHO-else", "x-team", "X-Team-Role", "X_Team_Role", "x-forwarded-for", "forwarded", "Via"} {
			got = append(got, x.Identifies([]byte(name)))
		}
		named = string(x.IdentityFields())
	}), func(c *flows.EntryConfig) { c.IdentityFields = conf.Strings{"x-who", "X-Team*", "X_Dept", "x-WHO"} })
	g.Dial().Send("GET / HTTP/1.1\nHost: gw:8000\n\n").Answer()
	want := []bool{true, false, true, true, true, false, false, false}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if want := "x-dept\nx-team*\nx-who"; named != want {
		t.Errorf("the names are %q, want %q", named, want)
	}
	if none := (&flows.Exchange{}); none.Identifies([]byte("x-who")) || none.IdentityFields() != nil {
		t.Error("an exchange without an entry has identity fields")
	}
}

// Whoever is not trusted is who the connection says, and claims nothing (higakikeita/tfdrift-falco#344,
// opensearch-project/security#165).
func TestCallersClaims(t *testing.T) {
	f := func(shape func(*flows.EntryConfig), sent string, want seen) {
		t.Helper()
		g, s := observing(t, shape)
		g.Dial().Send("GET / HTTP/1.1\nHost: gw:8000\n" + sent + "\n").Answer()
		if want.peer = "127.0.0.1"; *s != want {
			t.Errorf("%q: got %+v, want %+v", sent, *s, want)
		}
	}
	const claims = "X-A: 1\nx-proxy-user: admin\nX-Proxy-Roles: all_access\nX-Proxy-Ext-Dept: a\nes-security-runas-user: admin\n" +
		"X-Forwarded-For: 198.51.100.7\nX-Forwarded-Proto: https\nX-Forwarded-Anything: b\nX-SSL-Client-Cert: c\nForwarded: for=198.51.100.7\n"
	const own = "X-Forwarded-For=127.0.0.1;X-Forwarded-Host=gw:8000;X-Forwarded-Proto=http;"
	f(nil, claims, seen{ip: "127.0.0.1", fields: "X-A=1;", told: own})
	f(trust("192.0.2.0/24"), claims, seen{ip: "127.0.0.1", fields: "X-A=1;", told: own})
	f(func(c *flows.EntryConfig) { c.Forwarded = flows.ForwardedOff }, "X-Forwarded-For: 198.51.100.7\nx-proxy-user: a\n",
		seen{ip: "127.0.0.1", fields: "X-Forwarded-For=198.51.100.7;"})
	f(func(c *flows.EntryConfig) { c.Forwarded, c.Via = flows.ForwardedRFC, "weir" }, "Forwarded: for=a\nVia: 1.0 b\n",
		seen{ip: "127.0.0.1", fields: "Via=1.0 b;", told: `Forwarded=for=127.0.0.1;proto=http;host="gw:8000";Via=1.0 b, 1.1 weir;`})

	local := trust("127.0.0.0/8", "198.51.100.0/24")
	f(local, "x-proxy-user: alice\nX-Forwarded-For: 203.0.113.9\nX-Forwarded-Proto: https\n", seen{
		ip: "203.0.113.9", fields: "x-proxy-user=alice;X-Forwarded-For=203.0.113.9;X-Forwarded-Proto=https;",
		told: "X-Forwarded-For=203.0.113.9, 127.0.0.1;X-Forwarded-Host=gw:8000;",
	})
	ip := func(sent, want string) {
		t.Helper()
		g, s := observing(t, local)
		g.Dial().Send("GET / HTTP/1.1\nHost: a\n" + sent + "\n").Answer()
		if s.ip != want {
			t.Errorf("%q: the caller is %s, want %s", sent, s.ip, want)
		}
	}
	ip("", "127.0.0.1")
	ip("X-Forwarded-For: 192.0.2.1, 203.0.113.9, 198.51.100.7\n", "203.0.113.9")
	ip("X-Forwarded-For: 192.0.2.1\nX-Forwarded-For: 203.0.113.9 ,198.51.100.7\n", "203.0.113.9")
	ip("X-Forwarded-For: 203.0.113.9:1234\n", "203.0.113.9")
	ip("X-Forwarded-For: [2001:db8::1]:1234\n", "2001:db8::1")
	ip("X-Forwarded-For: 2001:db8::1\n", "2001:db8::1")
	ip("X-Forwarded-For: ::ffff:203.0.113.9\n", "203.0.113.9")
	ip("X-Forwarded-For: 192.0.2.1, unknown, 198.51.100.7\n", "198.51.100.7")
	ip("X-Forwarded-For: ,\n", "127.0.0.1")
	ip("X-Forwarded-For: []203.0.113.9[]\n", "127.0.0.1")
}

// What goes on when the client has its answer is of the same caller: a node that goes by X-Forwarded-For must not answer a
// cache's renewal as it would answer the gateway (opensearch-project/security#165).
func TestDetachedIsOfTheSameCaller(t *testing.T) {
	var got [2]string
	g := newGateway(t, oneFlow, testRegistry(func(x *flows.Exchange) {
		d := x.Detach(time.Minute)
		defer d.End()
		for i, x := range []*flows.Exchange{x, d} {
			got[i] = fmt.Sprintf("%q %v", x.Forwarded(nil), x.Identifies([]byte("x-proxy-user")))
		}
	}), trust("127.0.0.1"))
	g.Dial().Send("GET / HTTP/1.1\nHost: gw:8000\nX-Forwarded-For: 203.0.113.9\n\n").Answer()
	if !strings.Contains(got[0], "203.0.113.9, 127.0.0.1") || !strings.HasSuffix(got[0], "true") || got[1] != got[0] {
		t.Errorf("got %s and, detached, %s", got[0], got[1])
	}
}

func TestProxyProtocol(t *testing.T) {
	g, s := observing(t, func(c *flows.EntryConfig) {
		trust("127.0.0.1")(c)
		c.Network.ProxyProtocol = true
	})
	f := func(header, ip string) {
		t.Helper()
		c := g.Dial()
		if _, err := io.WriteString(c, header+"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, body := c.Answer(); body != "ok" {
				t.Errorf("%q: %q", header, body)
			}
		}
		if s.ip != ip || s.peer != ip {
			t.Errorf("%q: caller %s, peer %s, want %s", header, s.ip, s.peer, ip)
		}
	}
	const text = "PROXY TCP4 203.0.113.9 192.0.2.1 5000 8000\r\n"
	f(text, "203.0.113.9")
	f("PROXY TCP6 2001:db8::1 2001:db8::2 5000 8000\r\n", "2001:db8::1")
	f("PROXY UNKNOWN\r\n", "127.0.0.1")
	for n := range len(text) {
		c := g.Dial()
		for _, part := range []string{text[:n], text[n:] + "GET / HTTP/1.1\r\nHost: a\r\n\r\n"} {
			_, _ = io.WriteString(c, part) // each in a segment of its own, since Go sends without delay
		}
		if _, body := c.Answer(); body != "ok" || s.ip != "203.0.113.9" {
			t.Errorf("in two parts, %d: %q from %s", n, body, s.ip)
		}
	}
	c := g.Dial()
	_, _ = io.WriteString(c, "PROXY UNKNOWN\r\nGET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\nx-proxy-user: admin\r\n\r\n")
	if c.Answer(); s.ip != "127.0.0.1" || s.fields != "" {
		t.Errorf("whom the balancer does not name claims %+v", *s)
	}
	const signature = "\r\n\r\n\x00\r\nQUIT\n"
	f(signature+"\x21\x11\x00\x0c\xcb\x00\x71\x09\xc0\x00\x02\x01\x13\x88\x1f\x40", "203.0.113.9")
	f(signature+"\x20\x00\x00\x00", "127.0.0.1") // LOCAL: the balancer's own check

	refused := func(g *flowstest.Gateway, text string) {
		t.Helper()
		c := g.Dial()
		_, _ = io.WriteString(c, text)
		if got, _ := io.ReadAll(c.R); len(got) > 0 {
			t.Errorf("%q: answered %q", text, got)
		}
	}
	refused(g, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	refused(g, "PROXY TCP4 203.0.113.9\r\n")
	stranger, _ := observing(t, func(c *flows.EntryConfig) {
		trust("192.0.2.1")(c)
		c.Network.ProxyProtocol = true
	})
	refused(stranger, "PROXY TCP4 203.0.113.9 192.0.2.1 5000 8000\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
}

// authority makes a certificate authority, its file, and a client certificate of it.
func authority(t *testing.T) (file string, client tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "alice"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return file, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// overTLS returns what an entry with c listens with.
func overTLS(t *testing.T, c flows.EntryTLSConfig) *tls.Config {
	t.Helper()
	cert, err := flows.OpenCertificate(c, t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	config, err := cert.TLSConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// A client over TLS is told that nothing is missing when the gateway ends the connection (RFC 9112 section 9.8), also after a
// refusal that throws the rest of the request away.
func TestEndOverTLSIsTold(t *testing.T) {
	g := flowstest.New(t, testRegistry(nil), oneFlow, flowstest.Options{TLS: overTLS(t, flows.EntryTLSConfig{Enabled: true})})
	f := func(request string, want string) {
		t.Helper()
		c := tls.Client(g.Dial().TCPConn, &tls.Config{InsecureSkipVerify: true})
		if _, err := io.WriteString(c, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(c) // an end that was not told is io.ErrUnexpectedEOF
		if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 "+want) {
			t.Errorf("%q: %.60q, %v", request, all, err)
		}
	}
	f("GET / HTTP/1.1\nHost: a\nConnection: close\n\n", "200")
	f("GET / HTTP/1.1\nHost: a\nHost: b\n\n", "400")
	f("POST / HTTP/1.1\nHost: a\nContent-Length: 999999999\n\n", "413")
}

func TestClientCertificates(t *testing.T) {
	file, alice := authority(t)
	f := func(required bool, certs []tls.Certificate, want string) {
		t.Helper()
		s := new(seen)
		g := flowstest.New(t, testRegistry(func(x *flows.Exchange) {
			if c := x.Request.Cert; c != nil {
				s.cert = c.Subject.CommonName
			}
		}), oneFlow, flowstest.Options{TLS: overTLS(t, flows.EntryTLSConfig{Enabled: true, ClientCAFile: file, ClientCertRequired: required})})
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}}}
		defer client.CloseIdleConnections()
		resp, err := client.Get("https://" + g.Addr() + "/")
		if err != nil {
			s.cert = "refused"
		} else {
			_ = resp.Body.Close()
		}
		if s.cert != want {
			t.Errorf("required %v, %d certificates: got %q, want %q", required, len(certs), s.cert, want)
		}
	}
	f(false, []tls.Certificate{alice}, "alice")
	f(false, nil, "")
	f(true, []tls.Certificate{alice}, "alice")
	f(true, nil, "refused")
}

func TestPlainHTTPOnATLSPort(t *testing.T) {
	g := flowstest.New(t, testRegistry(nil), oneFlow, flowstest.Options{TLS: overTLS(t, flows.EntryTLSConfig{Enabled: true})})
	resp, body := g.Dial().Send("GET / HTTP/1.1\nHost: a\n\n").Answer()
	if resp.StatusCode != 400 || !strings.Contains(body, "HTTPS") || !strings.HasPrefix(body, `{"error":`) {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
}

// A client that sends a byte now and then keeps neither a connection nor a slot (golang/go#39468); one that is slow but
// steady gets through.
func TestMinimumRate(t *testing.T) {
	g := newGateway(t, flowstest.Main("{answer: {mirror: true}}"), testRegistry(nil), func(c *flows.EntryConfig) {
		c.ReadTimeout, c.MinRate = conf.Duration(400*time.Millisecond), 1000
	})
	f := func(piece string, status int) {
		t.Helper()
		const size = 3000
		c := g.Dial().Send("POST / HTTP/1.1\nHost: a\nContent-Length: 3000\n\n")
		done := make(chan struct{})
		go func() {
			defer close(done)
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for sent := 0; sent < size; sent += len(piece) {
				<-tick.C
				if _, err := io.WriteString(c, piece); err != nil {
					return
				}
			}
		}()
		if resp, body := c.Answer(); resp.StatusCode != status {
			t.Errorf("%d bytes each 100 ms: got %d %.200s, want %d", len(piece), resp.StatusCode, body, status)
		}
		_ = c.Close()
		<-done
	}
	f("x", http.StatusRequestTimeout)
	f(strings.Repeat("x", 300), http.StatusOK)
}

// A client that takes its answer slowly but steadily gets all of it, however long one write takes; one that takes nothing
// is cut.
func TestSlowReaders(t *testing.T) {
	const size = 8 << 20
	g := replying(t, func() reply { return reply{status: 200, body: strings.Repeat("x", size)} }, func(c *flows.EntryConfig) {
		c.WriteTimeout, c.MinRate = conf.Duration(300*time.Millisecond), 1000
	})
	steady := g.Dial()
	_ = steady.SetReadBuffer(64 << 10)
	steady.Send("GET / HTTP/1.1\nHost: a\nConnection: close\n\n")
	got, buf := 0, make([]byte, 256<<10)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		<-tick.C
		n, err := io.ReadFull(steady.R, buf)
		got += n
		if err != nil {
			break
		}
	}
	if got < size {
		t.Errorf("a steady reader got %d of %d bytes", got, size)
	}
	deaf := g.Dial().Send("GET / HTTP/1.1\nHost: a\n\n")
	waitFor(t, "the connection of a client that reads nothing to be closed", func() bool { return len(g.Conns()) == 0 })
	_ = deaf.Close()
}

// Whom credentials name is what a node reads in them (java.util.Base64), however they are spelled.
func TestClaim(t *testing.T) {
	f := func(authorization, scheme, want string, found bool) {
		t.Helper()
		if _, got := flows.Claim(nil, []byte(authorization), scheme); string(got) != want || (got != nil) != found {
			t.Errorf("%s: %q %v, want %q %v", authorization, got, got != nil, want, found)
		}
	}
	f("Basic am9lOjE=", "basic ", "joe", true)
	f("bASIC am9lOjE", "basic ", "joe", true)
	f("Basic am9lOg==", "basic ", "joe", true)
	f("Basic am9lOg", "basic ", "joe", true)
	f("Basic am9lOjEy", "basic ", "joe", true)
	f("Basic OjE=", "basic ", "", true)
	f("Basic am9l", "basic ", "", false)
	f("Basic am9lOj*=", "basic ", "", false)
	f("Basic a", "basic ", "", false)
	f("Basic", "basic ", "", false)
	f("Bearer am9lOjE=", "basic ", "", false)
	f("ApiKey a2V5OnNlY3JldA", "apikey ", "key", true)
	f("Basic "+strings.Repeat("am9l", 300)+"OjE=", "basic ", "", false)
	if got := flows.APIKeyID(nil, []byte("ApiKey a2V5OnNlY3JldA")); string(got) != "key" {
		t.Errorf("key id %q", got)
	}
}
