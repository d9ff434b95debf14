package transport

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// An identity is a certificate with its key.
type identity struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate signed by parent, or by itself if parent is nil.
func issue(t testing.TB, parent *identity, authority bool) *identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: fmt.Sprint("test ", serial)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: authority,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signer, signerKey := tmpl, key
	if parent != nil {
		signer, signerKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, signer, &key.PublicKey, signerKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &identity{cert, key}
}

func (i *identity) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.cert.Raw})
}

func (i *identity) keyPEM(t testing.TB) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(i.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (i *identity) fingerprint() string { return fmt.Sprintf("%X", sha256.Sum256(i.cert.Raw)) }

// overTLS serves answer over TLS, with the chain that begins with leaf.
func overTLS(t testing.TB, answer string, clients *identity, leaf *identity, chain ...*identity) string {
	pair := tls.Certificate{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key}
	for _, i := range chain {
		pair.Certificate = append(pair.Certificate, i.cert.Raw)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients != nil {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		cfg.ClientCAs.AddCert(clients.cert)
	}
	return serve(t, func(_ int, raw net.Conn, _ *bufio.Reader) {
		c := tls.Server(raw, cfg)
		r := bufio.NewReader(c)
		for {
			if _, err := readRequest(r); err != nil {
				return
			}
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	})
}

func TestTLSTrust(t *testing.T) {
	ca, other := issue(t, nil, true), issue(t, nil, true)
	leaf, client, selfSigned := issue(t, ca, false), issue(t, ca, false), issue(t, nil, false)
	plain, mutual := overTLS(t, okAnswer, nil, leaf, ca), overTLS(t, okAnswer, ca, leaf, ca)
	// Somebody without the authority's key can still send its certificate along.
	pretender := overTLS(t, okAnswer, nil, selfSigned, ca)
	f := func(addr string, o TLSOptions, wantOK bool) {
		t.Helper()
		cfg, err := TLSConfig(o)
		if err != nil {
			t.Fatal(err)
		}
		n := node(t, Options{Addr: addr, TLS: cfg})
		var e *Error
		switch err := n.Do(get("/"), &Response{}); {
		case wantOK && err != nil:
			t.Error(err)
		case !wantOK && (!errors.As(err, &e) || e.Phase != Handshake || e.Written != 0 || e.Answered):
			t.Errorf("a node that must not be trusted gave %v", err)
		}
	}
	f(plain, TLSOptions{CA: ca.certPEM()}, true)
	f(plain, TLSOptions{CA: other.certPEM()}, false)
	f(plain, TLSOptions{}, false)
	f(plain, TLSOptions{CA: ca.certPEM(), ServerName: "es.test"}, false)
	f(plain, TLSOptions{InsecureSkipVerify: true}, true)
	f(plain, TLSOptions{Fingerprint: leaf.fingerprint()}, true)
	f(plain, TLSOptions{Fingerprint: strings.ToLower(ca.fingerprint())}, true)
	f(plain, TLSOptions{Fingerprint: other.fingerprint()}, false)
	f(pretender, TLSOptions{Fingerprint: ca.fingerprint()}, false)
	f(pretender, TLSOptions{Fingerprint: selfSigned.fingerprint()}, true)
	f(mutual, TLSOptions{CA: ca.certPEM(), Cert: client.certPEM(), Key: client.keyPEM(t)}, true)
}

func TestTLSConfigRefuses(t *testing.T) {
	ca := issue(t, nil, true)
	f := func(o TLSOptions, want string) {
		t.Helper()
		if _, err := TLSConfig(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	f(TLSOptions{CA: []byte("x")}, "CA holds no PEM certificate")
	f(TLSOptions{Cert: ca.certPEM()}, "client certificate")
	f(TLSOptions{Fingerprint: "ab:cd"}, "SHA-256")
	f(TLSOptions{Fingerprint: ca.fingerprint(), CA: ca.certPEM()}, "excludes")
	f(TLSOptions{Fingerprint: ca.fingerprint(), InsecureSkipVerify: true}, "excludes")
}

func TestExchangesOverTLS(t *testing.T) {
	ca := issue(t, nil, true)
	leaf := issue(t, ca, false)
	cfg, err := TLSConfig(TLSOptions{CA: ca.certPEM()})
	if err != nil {
		t.Fatal(err)
	}
	n := node(t, Options{Addr: overTLS(t, okAnswer, nil, leaf), TLS: cfg, HeadTimeout: patience, WriteTimeout: patience})
	for _, size := range []int{0, 10, joinBody, maxInline, 1 << 20} {
		if resp := do(t, n, post(strings.Repeat("x", size))); string(resp.Body) != "ok" || resp.Reused != (size > 0) {
			t.Errorf("body of %d bytes: %q, reused %v", size, resp.Body, resp.Reused)
		}
	}
	if s := n.Stats(); s.Dials != 1 || s.Idle != 1 {
		t.Errorf("%+v", s)
	}
}

// A connection that is in use when the certificates change is the last exchange of those from before.
func TestConnectionsWithFormerCertificatesEnd(t *testing.T) {
	ca := issue(t, nil, true)
	cfg, err := TLSConfig(TLSOptions{CA: ca.certPEM()})
	if err != nil {
		t.Fatal(err)
	}
	n := node(t, Options{Addr: overTLS(t, okAnswer, nil, issue(t, ca, false)), TLS: cfg, HeadTimeout: patience, WriteTimeout: patience})
	do(t, n, &Request{Method: []byte("POST"), Target: []byte("/"), Stream: readerFunc(func(p []byte) (int, error) {
		n.SetTLS(cfg.Clone())
		return copy(p, "x"), nil
	}), StreamLength: 1})
	if s := n.Stats(); s.Open != 0 || s.Dials != 1 {
		t.Errorf("after the exchange: %+v", s)
	}
	do(t, n, get("/"))
	do(t, n, get("/"))
	if s := n.Stats(); s.Dials != 2 || s.Idle != 1 {
		t.Errorf("with the new ones: %+v", s)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestPlainNodeInPlaceOfTLS(t *testing.T) {
	n := node(t, Options{Addr: once(t, okAnswer), TLS: &tls.Config{}, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			_, err = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
		}
		return c, err
	}})
	if e := fails(t, n, get("/")); e.Phase != Handshake || e.Timeout {
		t.Errorf("%+v", *e)
	}
}

// TestLimitsOfEarlierExchangesDoNotStrikeOverTLS holds for a write limit that passed while the connection was idle: over
// TLS a write that it cuts short could not go on.
func TestLimitsOfEarlierExchangesDoNotStrikeOverTLS(t *testing.T) {
	ca := issue(t, nil, true)
	leaf := issue(t, ca, false)
	server := &tls.Config{
		Certificates:           []tls.Certificate{{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key}},
		SessionTicketsDisabled: true, // their writes would meet the client's in the pipe, which has no buffer
	}
	client, err := TLSConfig(TLSOptions{CA: ca.certPEM(), ServerName: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	answers := func(_ int, raw net.Conn, _ *bufio.Reader) {
		c := tls.Server(raw, server)
		slow(0, c, bufio.NewReader(c))
	}
	o := Options{TLS: client, WriteTimeout: 5 * time.Second, HeadTimeout: 5 * time.Second, IdleTimeout: time.Hour}
	// The certificate was made at the time of the machine, which a bubble does not have.
	client.Time = func() time.Time { return leaf.cert.NotBefore.Add(time.Minute) }
	server.Time = client.Time
	bubble(t, o, answers, func(t *testing.T, n *Node) {
		for range 3 {
			do(t, n, get("4s"))
			<-time.After(time.Minute)
		}
		if s := n.Stats(); s.Dials != 1 || s.FreshRetries != 0 {
			t.Errorf("%+v", s)
		}
	})

	// What a TLS write that failed had sent is not known: it must count as sent.
	deaf := func(_ int, raw net.Conn, _ *bufio.Reader) {
		c := tls.Server(raw, server)
		if c.Handshake() == nil {
			<-time.After(time.Hour)
		}
	}
	bubble(t, o, deaf, func(t *testing.T, n *Node) {
		if e := timesOut(t, n, get("/"), Write, 5*time.Second+time.Duration(answerGrace)); e.Written == 0 {
			t.Errorf("%+v", *e)
		}
	})
}
