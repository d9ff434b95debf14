package flows

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// certificateCheck is how often the files of a certificate are looked at for changes.
const certificateCheck = 10 * time.Second

// A Certificate is an entry's certificate out of two files. It follows them: when they change, new connections get the
// new one. If the new files cannot be used the old certificate stays.
type Certificate struct {
	certFile, keyFile string
	logger            *slog.Logger

	mu      sync.Mutex // guards the fields below
	current *tls.Certificate
	stamp   [2]fs.FileInfo
	checked time.Time
}

// OpenCertificate reads the certificate of an entry. Without files it makes a self-signed one and keeps it in folder.
func OpenCertificate(c EntryTLSConfig, folder string, logger *slog.Logger) (*Certificate, error) {
	k := &Certificate{certFile: c.CertFile, keyFile: c.KeyFile, logger: logger}
	if c.CertFile == "" {
		k.certFile, k.keyFile = filepath.Join(folder, "entry.crt"), filepath.Join(folder, "entry.key")
		if _, err := os.Stat(k.certFile); errors.Is(err, fs.ErrNotExist) {
			if err := selfSign(k.certFile, k.keyFile); err != nil {
				return nil, fmt.Errorf("make a self-signed certificate in %s: %w", folder, err)
			}
			logger.Warn("no cert_file given: made a self-signed certificate", "file", k.certFile)
		}
	}
	if err := k.load(); err != nil {
		return nil, err
	}
	return k, nil
}

// TLSConfig returns the server configuration around k. It fails if client_ca_file cannot be read.
func (k *Certificate) TLSConfig(c EntryTLSConfig) (*tls.Config, error) {
	out := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.get(), nil },
	}
	if c.MinVersion == "1.3" {
		out.MinVersion = tls.VersionTLS13
	}
	if c.ClientCAFile == "" {
		return out, nil
	}
	text, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("read client_ca_file: %w", err)
	}
	out.ClientCAs = x509.NewCertPool()
	if !out.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("client_ca_file %s holds no certificate in PEM", c.ClientCAFile)
	}
	out.ClientAuth = tls.VerifyClientCertIfGiven
	if c.ClientCertRequired {
		out.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return out, nil
}

func (k *Certificate) get() *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.checked) > certificateCheck && k.changed() {
		if err := k.load(); err != nil {
			k.logger.Error("changed certificate cannot be used, keeping the old one", "file", k.certFile, "error", err)
		} else {
			k.logger.Info("certificate reloaded", "file", k.certFile)
		}
	}
	return k.current
}

// changed tells whether one of the files is another than the one that was loaded. Symbolic links are followed.
func (k *Certificate) changed() bool {
	k.checked = time.Now()
	for i, name := range []string{k.certFile, k.keyFile} {
		info, err := os.Stat(name)
		if err != nil || k.stamp[i] == nil || !os.SameFile(info, k.stamp[i]) ||
			info.ModTime() != k.stamp[i].ModTime() || info.Size() != k.stamp[i].Size() {
			return true
		}
	}
	return false
}

func (k *Certificate) load() error {
	for i, name := range []string{k.certFile, k.keyFile} {
		k.stamp[i], _ = os.Stat(name)
	}
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", k.certFile, err)
	}
	k.current, k.checked = &pair, time.Now()
	return nil
}

// selfSign writes a certificate for this host that nobody vouches for, valid for two years.
func selfSign(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "weir " + host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(2, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{host, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(certFile), 0o700); err != nil {
		return err
	}
	err = os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600)
	if err != nil {
		return err
	}
	return os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}
