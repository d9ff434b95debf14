package elastic

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"

	"weir/elastic/transport"
	"weir/internal/wire"
)

// authorization returns the value of Authorization for the gateway's own calls.
func (k *Cluster) authorization(endpoints []Endpoint) (string, error) {
	c := k.config
	resolve := func(field string, s interface {
		Resolve(func(string) ([]byte, error)) (string, error)
	},
	) (string, error) {
		text, err := s.Resolve(k.deps.ReadFile)
		if err == nil && field != passwordField {
			err = checkCredential(text)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", field, err)
		}
		return text, nil
	}
	switch {
	case !c.APIKey.IsZero():
		key, err := resolve("api_key", c.APIKey)
		return "ApiKey " + key, err
	case !c.Bearer.IsZero():
		token, err := resolve("bearer", c.Bearer)
		return "Bearer " + token, err
	case c.BasicAuth.Username != "":
		password, err := resolve(passwordField, c.BasicAuth.Password)
		return basic(c.BasicAuth.Username, password), err
	}
	for _, e := range endpoints {
		if e.user != nil {
			password, _ := e.user.Password()
			return basic(e.user.Username(), password), nil
		}
	}
	return "", nil
}

// passwordField is the field of a configuration that is coded before it is sent.
const passwordField = "basic_auth.password"

// checkCredential refuses what cannot stand in a header field. The error does not tell the text.
func checkCredential(text string) error {
	if !wire.ValidValue([]byte(text)) {
		return errors.New("a line break or another control character cannot be sent in a header field")
	}
	return nil
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// tlsFiles are the contents of the files that a cluster's section tls names: CA, certificate and key.
type tlsFiles [3][]byte

func (f tlsFiles) equal(o tlsFiles) bool {
	return bytes.Equal(f[0], o[0]) && bytes.Equal(f[1], o[1]) && bytes.Equal(f[2], o[2])
}

func (k *Cluster) readTLS() (tlsFiles, error) {
	var files tlsFiles
	c := &k.config.TLS
	for i, f := range [...]struct{ field, name string }{{"ca_file", c.CAFile}, {"cert_file", c.CertFile}, {"key_file", c.KeyFile}} {
		if f.name == "" {
			continue
		}
		data, err := k.deps.ReadFile(f.name)
		if err != nil {
			return files, fmt.Errorf("tls.%s: %w", f.field, err)
		}
		files[i] = data
	}
	return files, nil
}

// tlsConfigs returns how the node at e is spoken to: by the pool, and, if that shows no client certificate although
// there is one, by the gateway's own calls.
func (k *Cluster) tlsConfigs(e Endpoint, files tlsFiles) (pool, own *tls.Config, err error) {
	c := &k.config.TLS
	o := transport.TLSOptions{
		CA: files[0], Cert: files[1], Key: files[2],
		ServerName: c.ServerName, Fingerprint: c.Fingerprint, InsecureSkipVerify: c.InsecureSkipVerify,
	}
	if o.ServerName == "" {
		if o.ServerName, _, err = net.SplitHostPort(e.Host); err != nil {
			o.ServerName = e.Host
		}
	}
	if pool, err = transport.TLSConfig(o); err != nil {
		return nil, nil, fmt.Errorf("tls: %w", err)
	}
	if len(o.Cert) == 0 || k.options.Certificate || c.LendCertificate {
		return pool, nil, nil
	}
	own = pool
	pool = own.Clone()
	pool.Certificates = nil
	return pool, own, nil
}

// refresh reads the credentials and certificates again that are kept in files, and uses what has changed: they expire
// and are replaced while the gateway runs. What cannot be read, or does not fit together because it is being replaced
// at this moment, changes nothing.
func (k *Cluster) refresh() {
	auth, err := k.authorization(k.config.endpoints())
	switch {
	case err != nil:
		k.warnOnce("credentials", "credentials cannot be read again, going on with those from before", "error", err)
	case auth != *k.auth.Load():
		k.auth.Store(&auth)
		k.logger.Info("credentials have changed")
		fallthrough
	default:
		k.warned.Delete("credentials")
	}
	files, err := k.readTLS()
	if err == nil {
		err = k.renewTLS(files)
	}
	if err != nil {
		k.warnOnce("certificates", "certificates cannot be read again, going on with those from before", "error", err)
		return
	}
	k.warned.Delete("certificates")
}

// renewTLS has all further connections use files. Each node is looked at by itself: one that has just joined may have been made
// with older ones.
func (k *Cluster) renewTLS(files tlsFiles) error {
	nodes := slices.Clone(k.seeds)
	for _, m := range k.picker.Members() {
		if !m.Node.seed {
			nodes = append(nodes, m.Node)
		}
	}
	for _, n := range nodes {
		if !n.endpoint.TLS || n.files.equal(files) {
			continue
		}
		pool, own, err := k.tlsConfigs(n.endpoint, files)
		if err != nil {
			return err
		}
		n.pool.SetTLS(pool)
		if own != nil {
			n.own.SetTLS(own)
		}
		n.files = files
	}
	if !files.equal(k.files) {
		k.files = files
		k.logger.Info("certificates have changed")
	}
	return nil
}
