package flows

import (
	"log/slog"
	"strconv"
	"time"

	"weir/elastic"
	"weir/elastic/api"
	"weir/internal/obs"
)

// classes is the number of API classes.
const classes = int(api.ClassAdmin) + 1

// entryMetrics are the numbers of one entry. All series are made at once, so that their number never changes and
// graphs begin at zero.
type entryMetrics struct {
	requests      [Outcomes][6]obs.Counter // by outcome and hundreds of the status
	durations     [Outcomes]obs.Histogram
	apis          [classes + 1]obs.Counter // the last for requests that nobody classified
	requestBytes  obs.Counter
	responseBytes obs.Counter
	connections   obs.Gauge
	handshakes    obs.Counter
	panics        obs.Counter
	traceErrors   obs.Counter
}

// statusClasses are the label values for hundreds of the status.
var statusClasses = [6]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}

func newEntryMetrics(m *obs.Metrics, entry string) (*entryMetrics, error) {
	requests := m.Counter("weir_http_requests_total", "Requests answered by an entry, or refused by it.",
		"entry", "status", "outcome")
	durations := m.Histogram("weir_http_request_duration_seconds",
		"Time from a complete request head until the answer was written.", obs.DurationBuckets, "entry", "outcome")
	apis := m.Counter("weir_http_api_requests_total", "Requests by the class of the API that they call; unclassified are those of which no filter and no rule asked.", "entry", "class")
	em := &entryMetrics{
		requestBytes: m.Counter("weir_http_request_bytes_total", "Bytes of request bodies read from clients.",
			"entry").With(entry),
		responseBytes: m.Counter("weir_http_response_bytes_total", "Bytes of answers written to clients, heads included.",
			"entry").With(entry),
		connections: m.Gauge("weir_http_connections", "Connections of clients that are open.", "entry").With(entry),
		handshakes: m.Counter("weir_http_tls_handshake_errors_total", "TLS handshakes of clients that failed.",
			"entry").With(entry),
		panics: m.Counter("weir_http_panics_total", "Panics of filters, each answered with a 500.", "entry").With(entry),
		traceErrors: m.Counter("weir_http_tracing_errors_total", "Tracing flows that ended with an error.",
			"entry").With(entry),
	}
	for o := range Outcome(Outcomes) {
		for s, status := range statusClasses {
			em.requests[o][s] = requests.With(entry, status, o.String())
		}
		em.durations[o] = durations.With(entry, o.String())
	}
	for c := range classes {
		em.apis[c] = apis.With(entry, api.Class(c).String())
	}
	em.apis[classes] = apis.With(entry, "unclassified")
	return em, m.Err()
}

// count counts an exchange that has ended after d.
func (m *entryMetrics) count(x *Exchange, d time.Duration) {
	m.requests[x.Trace.Outcome][min(max(x.Response.Status/100, 0), 5)].Inc()
	m.durations[x.Trace.Outcome].Observe(d.Seconds())
	class := classes
	if x.classified || x.router != nil && x.router.tracing != nil {
		class = int(x.Call().Class)
	}
	m.apis[class].Inc()
	m.responseBytes.Add(float64(x.ResponseBytes))
	if n := x.RequestBytes; n > 0 {
		m.requestBytes.Add(float64(n))
	}
}

// logFailure says why an exchange failed; lines of one kind are throttled.
func (e *Entry) logFailure(x *Exchange, ee *elastic.Error) {
	e.failLog.Log(slog.LevelWarn, ee.Type+strconv.Itoa(ee.Status), "exchange failed", "flow", x.Trace.Flow,
		"cluster", x.Trace.Cluster, "node", x.Trace.Node, "status", ee.Status, "type", ee.Type, "error", obs.RedactError(ee))
}
