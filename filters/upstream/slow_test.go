package upstream_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"weir/elastic/estest"
)

// TestSlowSendersLeaveRoom has more slow senders than a node may have exchanges: others are answered all the same.
func TestSlowSendersLeaveRoom(t *testing.T) {
	const room = 8
	es := estest.New(t, estest.Options{})
	addr, metrics := gateway(t, endpoints(es.URL()), fmt.Sprintf(", max_connection: %d, wait_timeout: 3s", room))
	var senders []net.Conn
	for range 2 * room {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		senders = append(senders, c)
		if _, err := io.WriteString(c, "POST /i/_doc HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the senders to hold or to await what there is", func() bool {
		return sum(t, metrics, "weir_upstream_connections_in_use")+sum(t, metrics, "weir_upstream_queued") >= 2*room
	})
	if resp, body := ask(t, addr, request("GET", "/", "")); resp.StatusCode != 200 {
		t.Errorf("a quick request beside slow ones: status %d %s", resp.StatusCode, body)
	}
	for _, c := range senders {
		c.Close()
	}
	eventually(t, "nothing to be left of them", func() bool {
		return sum(t, metrics, "weir_upstream_connections_in_use") == 0 && sum(t, metrics, "weir_upstream_queued") == 0
	})
}
