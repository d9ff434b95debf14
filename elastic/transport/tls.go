package transport

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// TLSOptions say how a node proves who it is, and how Weir does. Reading files is the caller's part.
type TLSOptions struct {
	CA         []byte // PEM; the system's authorities if empty
	Cert, Key  []byte // PEM; the client's certificate, both or neither
	ServerName string // in place of the host of Options.Addr
	// Fingerprint is the SHA-256 of a certificate in hexadecimal, colons allowed, as Elasticsearch prints it when it
	// starts for the first time: of the node's own, which is then trusted as it is, or of an authority that must have
	// signed it.
	Fingerprint        string
	InsecureSkipVerify bool // any certificate is taken
}

// TLSConfig builds the configuration for Options.TLS.
func TLSConfig(o TLSOptions) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName, InsecureSkipVerify: o.InsecureSkipVerify}
	if len(o.CA) > 0 {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(o.CA) {
			return nil, errors.New("CA holds no PEM certificate")
		}
	}
	if len(o.Cert) > 0 || len(o.Key) > 0 {
		pair, err := tls.X509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if o.Fingerprint != "" {
		if len(o.CA) > 0 || o.InsecureSkipVerify {
			return nil, errors.New("a fingerprint excludes a CA and skipping verification")
		}
		want, err := hex.DecodeString(strings.ReplaceAll(o.Fingerprint, ":", ""))
		if err != nil || len(want) != sha256.Size {
			return nil, fmt.Errorf("fingerprint %q is not a SHA-256 in hexadecimal", o.Fingerprint)
		}
		c.InsecureSkipVerify = true // verifyPinned takes the place of the usual verification
		c.VerifyConnection = func(s tls.ConnectionState) error { return verifyPinned(s.PeerCertificates, want) }
	}
	return c, nil
}

// verifyPinned accepts a chain whose first certificate has the fingerprint, or was signed by one that has it. That the
// pinned authority is merely among the certificates sent proves nothing: anybody can send it.
func verifyPinned(chain []*x509.Certificate, want []byte) error {
	between := x509.NewCertPool()
	var authority *x509.Certificate
	for i, cert := range chain {
		sum := sha256.Sum256(cert.Raw)
		switch pinned := bytes.Equal(sum[:], want); {
		case pinned && i == 0:
			return nil
		case pinned:
			authority = cert
		case i > 0:
			between.AddCert(cert)
		}
	}
	if authority == nil {
		return errors.New("no certificate of the node has the configured fingerprint")
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err != nil {
		return fmt.Errorf("verify against the pinned authority: %w", err)
	}
	return nil
}
