package upstream_test

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir/elastic/estest"
)

// sign makes the value of Authorization for a request (AWS Signature Version 4, as its documentation describes it).
func sign(method, target, body string, header map[string]string, names ...string) string {
	const date, scope, secret = "20260101T000000Z", "20260101/eu-west-1/es/aws4_request", "secret"
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	mac := func(key []byte, s string) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(s))
		return m.Sum(nil)
	}
	path, query, _ := strings.Cut(target, "?")
	slices.Sort(names)
	var canonical strings.Builder
	fmt.Fprintf(&canonical, "%s\n%s\n%s\n", method, path, query)
	for _, name := range names {
		fmt.Fprintf(&canonical, "%s:%s\n", name, strings.TrimSpace(header[name]))
	}
	signed := strings.Join(names, ";")
	fmt.Fprintf(&canonical, "\n%s\n%s", signed, sum(body))
	key := []byte("AWS4" + secret)
	for _, part := range strings.Split(scope, "/") {
		key = mac(key, part)
	}
	return "AWS4-HMAC-SHA256 Credential=key/" + scope + ", SignedHeaders=" + signed + ", Signature=" +
		hex.EncodeToString(mac(key, "AWS4-HMAC-SHA256\n"+date+"\n"+scope+"\n"+sum(canonical.String())))
}

// verifier is a node behind which signatures are checked: it works them out from the bytes that reach it.
func verifier(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			verify(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "http://" + l.Addr().String()
}

func verify(c net.Conn) {
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body, _ := io.ReadAll(req.Body)
	given := req.Header.Get("Authorization")
	_, rest, _ := strings.Cut(given, "SignedHeaders=")
	list, _, _ := strings.Cut(rest, ",")
	header := map[string]string{"host": req.Host}
	for name, values := range req.Header {
		header[strings.ToLower(name)] = strings.Join(values, ",")
	}
	status := 403
	if given != "" && sign(req.Method, req.RequestURI, string(body), header, strings.Split(list, ";")...) == given {
		status = 200
	}
	answer := fmt.Sprintf(`{"status":%d}`, status)
	fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, len(answer), answer)
}

// TestSignedRequestsStayValid sends requests whose signature covers Host and several fields through the gateway. The
// same requests are refused by the node where the gateway does not know that they are signed.
func TestSignedRequestsStayValid(t *testing.T) {
	header := map[string]string{
		"host": "gw.test:8000", "x-amz-date": "20260101T000000Z", "content-type": "application/json", "x-opaque-id": "a  b",
	}
	f := func(cluster, method, target, body string, want int, names ...string) {
		t.Helper()
		addr, _ := gateway(t, endpoints(verifier(t))+cluster, "")
		header["content-length"] = strconv.Itoa(len(body))
		raw := request(method, target, body, "X-Amz-Date: "+header["x-amz-date"], "X-Opaque-Id: "+header["x-opaque-id"],
			"Authorization: "+sign(method, target, body, header, names...), "Connection: keep-alive, x-hop", "TE: trailers", "X-Hop: 1")
		if resp, got := ask(t, addr, raw); resp.StatusCode != want {
			t.Errorf("%s %s with%s, signed %q: status %d %s, want %d", method, target, cluster, names, resp.StatusCode, got, want)
		}
	}
	const signed = ", signed_requests: true"
	all := []string{"host", "x-amz-date", "content-type", "x-opaque-id"}
	f(signed, "POST", "/i/_search?a=%2F&no_cache=true", `{"query":{"match_all":{}}}`, 200, all...)
	f(signed, "POST", "/%3Ci-%7Bnow%2Fd%7D%3E/_doc", "{}", 200, all...)
	f(signed, "GET", "/", "", 200, "host", "x-amz-date")
	f(signed, "POST", "/_bulk", strings.Repeat("{\"index\":{\"_index\":\"i\"}}\n{}\n", 100_000), 200, all...)
	f("", "POST", "/i/_search", "{}", 403, all...)
	f(", host: client", "POST", "/i/_search?no_cache=true", "{}", 403, all...)
	f(signed, "DELETE", "/i", "", 200, "host", "content-length")
	f(signed, "POST", "/i/_search", "{}", 200, "host", "content-length")
	// What ends at every proxy cannot be signed.
	f(signed, "GET", "/", "", 400, "host", "te")
	f(signed, "GET", "/", "", 400, "host", "x-hop")
}

func TestSignedInTheQuery(t *testing.T) {
	addr, _ := gateway(t, endpoints(verifier(t))+", signed_requests: true", "")
	resp, _ := ask(t, addr, request("GET", "/?X-Amz-SignedHeaders=host%3Bconnection", "", "Connection: close"))
	if resp.StatusCode != 400 {
		t.Errorf("status %d", resp.StatusCode)
	}
	if resp, _ = ask(t, addr, request("GET", "/?X-Amz-SignedHeaders=host", "")); resp.StatusCode != 403 {
		t.Errorf("a wrong signature is the node's to refuse: status %d", resp.StatusCode)
	}
}

// TestWhoseCredentialsNodesGet holds a secured cluster to its users: the gateway's rights are lent by rule alone.
func TestWhoseCredentialsNodesGet(t *testing.T) {
	es := estest.New(t, estest.Options{Users: []estest.User{{Name: "admin", Password: "a:b"}, {Name: "bob", Password: "x"}}})
	cluster := endpoints(es.URL()) + ", basic_auth: {username: admin, password: 'a:b'}"
	const bob = "Authorization: Basic Ym9iOng="
	f := func(filter, wantAnonymous, wantBob string) {
		t.Helper()
		addr, _ := gateway(t, cluster, filter)
		for range 2 { // on one connection to the node in turns: nobody inherits the credentials of the one before
			for _, each := range []struct{ line, want string }{{"X-A: b", wantAnonymous}, {bob, wantBob}} {
				resp, body := ask(t, addr, request("GET", "/_security/_authenticate", "", each.line))
				got := fmt.Sprint(resp.StatusCode)
				if _, name, ok := strings.Cut(body, `"username":"`); ok {
					got, _, _ = strings.Cut(name, `"`)
				}
				if got != each.want {
					t.Errorf("%s, %s: the node sees %s, want %s; %s", filter, each.line, got, each.want, body)
				}
			}
		}
	}
	f("", "401", "bob")
	f(", credentials: caller", "401", "bob")
	f(", credentials: gateway", "admin", "admin")
	f(", credentials: if_missing", "admin", "bob")
}

func TestSignedRequestsExcludeLending(t *testing.T) {
	for _, credentials := range []string{"gateway", "if_missing"} {
		err := problems(one(endpoints("http://127.0.0.1:1")+", signed_requests: true", ", credentials: "+credentials))
		if got := fmt.Sprint(err); !strings.Contains(got, "requests to up are signed by callers") {
			t.Errorf("%s: %s", credentials, got)
		}
	}
}
