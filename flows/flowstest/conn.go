package flowstest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A Conn is a client's connection. Whatever it does has to be done within 20 seconds.
type Conn struct {
	*net.TCPConn
	// R reads what the gateway sends.
	R *bufio.Reader

	tb testing.TB
}

// Dial connects to the gateway.
func (g *Gateway) Dial() *Conn {
	g.tb.Helper()
	nc, err := net.Dial("tcp", g.Addr())
	if err != nil {
		g.tb.Fatal(err)
	}
	g.tb.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	tcp, _ := nc.(*net.TCPConn)
	return &Conn{TCPConn: tcp, R: bufio.NewReader(nc), tb: g.tb}
}

// Send sends text, whose line feeds become ends of lines of HTTP.
func (c *Conn) Send(text string) *Conn {
	c.tb.Helper()
	if _, err := io.WriteString(c, strings.ReplaceAll(text, "\n", "\r\n")); err != nil {
		c.tb.Fatal(err)
	}
	return c
}

// Answer reads one answer.
func (c *Conn) Answer() (*http.Response, string) {
	c.tb.Helper()
	resp, err := http.ReadResponse(c.R, nil)
	if err != nil {
		c.tb.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.tb.Fatal(err)
	}
	return resp, string(body)
}

// Raw returns all that the gateway sends until it closes the connection.
func (c *Conn) Raw() string {
	c.tb.Helper()
	all, err := io.ReadAll(c.R)
	if err != nil {
		c.tb.Fatalf("%v after %q", err, all)
	}
	return string(all)
}

// Closed tells whether the gateway closes the connection, after all that it still sends.
func (c *Conn) Closed() bool {
	_, err := io.Copy(io.Discard, c.R)
	return err == nil
}
