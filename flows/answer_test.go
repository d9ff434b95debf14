package flows_test

import (
	"io"
	"testing"

	"go.uber.org/goleak"

	"weir/flows"
	"weir/flows/flowstest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// answerConfig configures the filter answer of these tests.
type answerConfig struct {
	// Text of the answer.
	Text string `conf:"text"`
	// Status of the answer.
	Status int `conf:"status"`
	// Answer with the request's body.
	Mirror bool `conf:"mirror"`
	// Panic.
	Panic bool `conf:"panic"`
	// Wait until the client has left.
	Wait bool `conf:"wait"`
	// Go on with the next filter.
	Continue bool `conf:"continue"`
}

type answerFilter struct {
	answerConfig
	seen func(x *flows.Exchange)
}

func (f *answerFilter) Serve(x *flows.Exchange, next flows.Handler) error {
	if f.seen != nil {
		f.seen(x)
	}
	if f.Panic {
		panic("planted")
	}
	if f.Wait {
		<-x.Cancel().Done()
		return io.ErrClosedPipe
	}
	body := []byte(f.Text)
	if f.Mirror {
		got, err := x.Request.Body.Bytes(1 << 30)
		if err != nil {
			return err
		}
		body = got
	}
	x.Reply(f.Status, "text/plain", body)
	if f.Continue {
		return next.Serve(x)
	}
	return nil
}

// testRegistry has the filter answer, which calls seen, if not nil, with every exchange.
func testRegistry(seen func(x *flows.Exchange)) *flows.Registry {
	r := flows.NewRegistry()
	flows.Register(r, flows.Factory[answerConfig]{
		Name: "answer", Default: func() answerConfig { return answerConfig{Status: 200, Text: "ok"} },
		Build: func(_ *flows.Builder, c answerConfig) flows.Filter { return &answerFilter{c, seen} },
	})
	return r
}

// oneFlow answers ok.
var oneFlow = flowstest.Main("{answer: {}}")

// newGateway serves text; shape, if not nil, changes the entry's configuration.
func newGateway(t testing.TB, text string, reg *flows.Registry, shape func(*flows.EntryConfig)) *flowstest.Gateway {
	t.Helper()
	return flowstest.New(t, reg, text, flowstest.Options{Entry: shape})
}
