package upstream_test

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
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/flows"
	"weir/flows/flowstest"
)

// A signer makes certificates of one authority.
type signer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate for 127.0.0.1 and for clients: of s itself if it has none yet.
func (s *signer) issue(name string) tls.Certificate {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: s.cert == nil, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signing := leaf, key
	if s.cert != nil {
		parent, signing = s.cert, s.key
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, parent, &key.PublicKey, signing)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.cert == nil {
		if s.cert, err = x509.ParseCertificate(der); err != nil {
			s.t.Fatal(err)
		}
		s.key = key
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// write writes a certificate and its key into files.
func (s *signer) write(c tls.Certificate, certFile, keyFile string) {
	s.t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		s.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestUsersByCertificateEndAtTheGateway has a node that knows users by their certificates alone, and a caller who shows his to the
// gateway. The node does not see it (elastic/elasticsearch#34396), so it refuses: in its own words, which reach the caller. Nobody
// becomes the gateway's user instead, and no header field from outside stands for a certificate.
func TestUsersByCertificateEndAtTheGateway(t *testing.T) {
	s := &signer{t: t}
	authority := s.issue("authority")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	s.write(authority, file("ca.pem"), file("ca.key"))
	s.write(s.issue("gateway"), file("gateway.pem"), file("gateway.key"))
	pool := x509.NewCertPool()
	pool.AddCert(s.cert)

	const refusal = `{"error":{"root_cause":[{"type":"security_exception","reason":"missing authentication credentials for REST request [/i/_search]"}],` +
		`"type":"security_exception","reason":"missing authentication credentials for REST request [/i/_search]"},"status":401}`
	var mu sync.Mutex
	users, fields := map[string]string{}, http.Header{}
	node := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := ""
		if len(r.TLS.PeerCertificates) > 0 {
			user = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		mu.Lock()
		users[r.URL.Path] = user
		if r.URL.Path == "/i/_search" {
			fields = r.Header.Clone()
		}
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if user == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="security" charset="UTF-8"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, refusal)
			return
		}
		_, _ = fmt.Fprintf(w, `{"cluster_uuid":"u","version":{"number":"8.17.0"},"username":%q}`, user)
	}))
	node.TLS = &tls.Config{Certificates: []tls.Certificate{s.issue("node")}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	node.StartTLS()
	t.Cleanup(node.Close)

	entryTLS := flows.EntryTLSConfig{Enabled: true, ClientCAFile: file("ca.pem"), ClientCertRequired: true}
	cert, err := flows.OpenCertificate(entryTLS, t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	listen, err := cert.TLSConfig(entryTLS)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{s.issue("alice")}}}}
	t.Cleanup(client.CloseIdleConnections)
	f := func(filter string, wantStatus int, wantUser, wantBody string) {
		t.Helper()
		g := flowstest.New(t, registry(), one(endpoints(node.URL)+fmt.Sprintf(", tls: {ca_file: %s, cert_file: %s, key_file: %s}",
			file("ca.pem"), file("gateway.pem"), file("gateway.key")), filter), flowstest.Options{TLS: listen})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.Addr()+"/i/_search", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-SSL-Client-S-DN", "CN=admin")
		req.Header.Set("X-Client-Cert", "admin")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if resp.StatusCode != wantStatus || users["/i/_search"] != wantUser || !strings.Contains(string(body), wantBody) ||
			(wantStatus == 401) != (resp.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s: status %d %s, the node saw the user %q, want %d, %q and %q", filter, resp.StatusCode, body, users["/i/_search"], wantStatus, wantUser, wantBody)
		}
		for name := range fields {
			if strings.HasPrefix(name, "X-Ssl-Client") || strings.HasPrefix(name, "X-Client-Cert") {
				t.Errorf("%s: %s from outside reached the node", filter, name)
			}
		}
	}
	f("", http.StatusUnauthorized, "", refusal)
	f(", credentials: if_missing", http.StatusUnauthorized, "", refusal)
	f(", credentials: gateway", http.StatusOK, "gateway", `"username":"gateway"`)
}
