// Package debug holds filters that answer by themselves or end a request's way: to try a flow, to give a fixed reply.
//
// They look at nothing in the request. They trade usefulness for being the cheapest thing that a gateway can do: the
// answer is worked out when the filter is built.
package debug

import (
	"net/http"
	"os"
	"strings"

	"weir/flows"
	"weir/internal/wire"
)

// EchoConfig is the configuration of echo.
type EchoConfig struct {
	// Text of the answer.
	Message string `conf:"message,alias=str"`
	// How many times the text stands in the answer.
	Repeat int `conf:"repeat" min:"1" max:"1000000"`
	// Also write the text to the standard output of the gateway, for trying things out.
	Stdout bool `conf:"stdout"`
	// Status of the answer.
	Status int `conf:"status" min:"200" max:"599"`
	// Media type of the answer. By default application/json for a message that begins like JSON, otherwise text/plain.
	ContentType string `conf:"content_type"`
	// Go on with the next filter instead of ending the exchange.
	Continue bool `conf:"continue"`
}

// Echo answers with a fixed text.
type echo struct {
	body        []byte
	contentType string
	config      EchoConfig
}

// maxEcho bounds the answer that echo keeps in memory.
const maxEcho = 64 << 20

// Echo declares the filter echo.
func Echo() flows.Factory[EchoConfig] {
	return flows.Factory[EchoConfig]{
		Name: "echo", Family: "debug", Summary: "Answers with a fixed text.",
		Default: func() EchoConfig { return EchoConfig{Message: ".", Repeat: 1, Status: http.StatusOK} },
		Build: func(b *flows.Builder, c EchoConfig) flows.Filter {
			if len(c.Message)*c.Repeat > maxEcho {
				b.Errorf("repeat", "the answer would be over %d bytes", maxEcho)
				return nil
			}
			if !wire.ValidValue([]byte(c.ContentType)) {
				b.Errorf("content_type", "%q cannot stand in a header field", c.ContentType)
				return nil
			}
			e := &echo{body: []byte(strings.Repeat(c.Message, c.Repeat)), contentType: c.ContentType, config: c}
			if e.contentType == "" {
				e.contentType = "text/plain; charset=utf-8"
				if text := strings.TrimLeft(c.Message, " \t\r\n"); text != "" && strings.ContainsAny(text[:1], "{[") {
					e.contentType = "application/json"
				}
			}
			return e
		},
		Examples: []flows.Example{
			{Title: "A fixed answer", YAML: "- echo: {message: '{\"message\":\"not found\"}', status: 404}"},
		},
	}
}

// Ends implements flows.Ender.
func (e *echo) Ends() bool { return !e.config.Continue }

func (e *echo) Serve(x *flows.Exchange, next flows.Handler) error {
	if e.config.Stdout {
		// For trying things out by hand: a failure to print is nobody's business.
		_, _ = os.Stdout.Write(append(e.body[:len(e.body):len(e.body)], '\n'))
	}
	x.Reply(e.config.Status, e.contentType, e.body)
	if e.config.Continue {
		return next.Serve(x)
	}
	return nil
}
