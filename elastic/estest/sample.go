package estest

import (
	"bytes"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"time"
)

// SampleIndex is the body with which to create an index for Sample's documents. It suits real nodes as well.
const SampleIndex = `{"settings":{"number_of_shards":1,"number_of_replicas":0},"mappings":{"properties":{` +
	`"@timestamp":{"type":"date"},"service":{"type":"keyword"},"method":{"type":"keyword"},"path":{"type":"keyword"},` +
	`"status":{"type":"integer"},"latency_ms":{"type":"double"},"bytes":{"type":"long"},"user":{"type":"keyword"},` +
	`"country":{"type":"keyword"},"message":{"type":"text"}}}}`

// sampleBatch is how many documents a bulk body of Sample has.
const sampleBatch = 500

// sampleServices are the parts of a web shop, with the paths that they serve, their usual latency in milliseconds, and
// what one of their lines says.
var sampleServices = []struct {
	name, method, path string
	latency            float64
	message            string
}{
	{"catalog", "GET", "/products/%d", 18, "product %d shown"},
	{"catalog", "GET", "/search", 45, "search gave %d products"},
	{"cart", "POST", "/cart/items", 25, "product %d put into the cart"},
	{"checkout", "POST", "/orders", 120, "order %d placed"},
	{"payment", "POST", "/payments", 240, "payment for order %d authorised"},
	{"account", "POST", "/login", 60, "customer %d logged in"},
	{"images", "GET", "/images/%d.jpg", 6, "image %d sent"},
}

var sampleCountries = []string{"DE", "US", "GB", "FR", "PL", "NL", "IN", "BR", "JP", "SE"}

// Sample yields n documents as bodies for _bulk into an index, up to 500 documents each: the log of a small web shop
// over the day that ends at until, busier by day than by night, with some failures and some slow answers. The same
// arguments give the same bytes.
func Sample(index string, n int, seed uint64, until time.Time) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		rnd := rand.New(rand.NewPCG(seed, uint64(n)))
		var body bytes.Buffer
		at := until.Add(-24 * time.Hour)
		step := 24 * time.Hour / time.Duration(max(n, 1))
		for i := range n {
			at = at.Add(step)
			fmt.Fprintf(&body, `{"index":{"_index":%q,"_id":"%d"}}`+"\n", index, i+1)
			writeSample(&body, rnd, at.Add(-time.Duration(rnd.Int64N(int64(step)+1))))
			if (i+1)%sampleBatch == 0 || i == n-1 {
				if !yield(bytes.Clone(body.Bytes())) {
					return
				}
				body.Reset()
			}
		}
	}
}

func writeSample(w *bytes.Buffer, rnd *rand.Rand, at time.Time) {
	s := sampleServices[rnd.IntN(len(sampleServices))]
	number := 1000 + rnd.IntN(9000)
	latency := s.latency * (0.5 + rnd.ExpFloat64())
	if hour := at.UTC().Hour(); hour >= 18 && hour < 21 {
		latency *= 1.8 // the evening rush
	}
	status, message := 200, fmt.Sprintf(s.message, number)
	switch p := rnd.Float64(); {
	case p < 0.01:
		status, message = 503, "upstream "+s.name+" timed out"
		latency += 3000
	case p < 0.02:
		status, message = 500, s.name+" failed with an unexpected error"
	case p < 0.06:
		status, message = 404, "not found"
	case p < 0.08:
		status, message = 429, "too many requests"
	}
	path := s.path
	if strings.Contains(path, "%d") {
		path = fmt.Sprintf(path, number)
	}
	fmt.Fprintf(w, `{"@timestamp":%q,"service":%q,"method":%q,"path":%q,"status":%d,"latency_ms":%.1f,"bytes":%d,"user":"u%04d","country":%q,"message":%q}`+"\n",
		at.UTC().Format("2006-01-02T15:04:05.000Z"), s.name, s.method, path, status, latency, 200+rnd.IntN(20_000),
		rnd.IntN(400), sampleCountries[min(rnd.IntN(10), rnd.IntN(10))], message)
}
