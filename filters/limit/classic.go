package limit

import (
	"slices"
	"strings"
	"time"

	"weir/flows"
	"weir/internal/conf"
)

// ClassicLimitConfig is what the classic limits of requests and bytes have in common.
type ClassicLimitConfig struct {
	// Length of time that the numbers are for.
	Interval conf.Duration `conf:"interval" min:"1ms"`
	// Requests in that time, in the long run; of bulk_request_throttle documents.
	MaxRequests *int64 `conf:"max_requests" min:"1"`
	// Requests, or documents, that may come at once after rest; by default max_requests.
	BurstRequests *int64 `conf:"burst_requests" min:"1"`
	// Bytes of request bodies in that time, in the long run; of bulk_request_throttle of lines, not compressed.
	MaxBytes *conf.Bytes `conf:"max_bytes" min:"1"`
	// Bytes that may come at once after rest; by default max_bytes.
	BurstBytes *conf.Bytes `conf:"burst_bytes" min:"1"`
	// What happens to a request over the limit: retry lets it wait, at most retry_delay_in_ms times max_retry_times; drop
	// refuses it at once.
	Action string `conf:"action" enum:"retry,drop"`
	// Status of the refusal.
	Status int `conf:"status" min:"400" max:"599"`
	// Text of the refusal. By default it names the limit and its rate.
	Message string `conf:"message"`
	// With max_retry_times: how long a request may wait. It waits until it passes, not in steps of this length.
	RetryDelay int64 `conf:"retry_delay_in_ms" min:"1" max:"3600000"`
	// With retry_delay_in_ms: how long a request may wait.
	MaxRetryTimes int64 `conf:"max_retry_times" min:"1" max:"1000000"`
	// No effect: message is the text of all refusals.
	FailedRetryMessage string `conf:"failed_retry_message"`
	// Log refusals.
	LogWarnMessage bool `conf:"log_warn_message"`
}

// SetDefaults makes c a limit by the second whose requests wait.
func (c *ClassicLimitConfig) SetDefaults() { *c = defaultClassicLimit() }

func defaultClassicLimit() ClassicLimitConfig {
	return ClassicLimitConfig{Interval: conf.Duration(time.Second), Action: "retry", Status: 429, RetryDelay: 10, MaxRetryTimes: 1000}
}

// RequestPathLimiterConfig is the configuration of request_path_limiter.
type RequestPathLimiterConfig struct {
	// Text of the refusal. By default it names the limit and its rate.
	Message string `conf:"message"`
	// Limits by path: the first that matches counts.
	Rules []RateLimitRule `conf:"rules,required"`
}

// RequestPathLimiter declares the filter request_path_limiter.
func RequestPathLimiter() flows.Factory[RequestPathLimiterConfig] {
	return flows.Factory[RequestPathLimiterConfig]{
		Name: "request_path_limiter", Family: "limit",
		Summary: "Is rate_limit with rules, under its classic name.",
		Default: func() RequestPathLimiterConfig { return RequestPathLimiterConfig{} },
		Build: func(b *flows.Builder, c RequestPathLimiterConfig) flows.Filter {
			r := defaultRateLimit()
			r.Message, r.Rules = c.Message, c.Rules
			return assemble(b, r, func(list string, i int) *conf.Node { return b.Node(list).Item(i) })
		},
		Examples: []flows.Example{
			{Title: "Searches by index", YAML: `- request_path_limiter:
    message: "Hey, You just reached our request limit!"
    rules:
      - {pattern: "/(?P<index_name>medcl)/_search", max_qps: 3, group: index_name}
      - {pattern: "/(?P<index_name>.*?)/_search", max_qps: 100, group: index_name}`},
		},
	}
}

// byClassicKey declares a filter that is rate_limit with one key. of returns the values of the key that are limited, which stand
// in a field of C, and the limits.
func byClassicKey[C any](name, key, field string, of func(*C) (conf.Strings, *ClassicLimitConfig), example flows.Example) flows.Factory[C] {
	return flows.Factory[C]{
		Name: name, Family: "limit",
		Summary: "Is rate_limit with the key " + key + ", under its classic name.",
		Default: func() (c C) {
			_, limits := of(&c)
			*limits = defaultClassicLimit()
			return c
		},
		Build: func(b *flows.Builder, c C) flows.Filter {
			values, limits := of(&c)
			return limits.build(b, conf.Strings{key}, field, values)
		},
		Examples: []flows.Example{example},
	}
}

// RequestClientIPLimiterConfig is the configuration of request_client_ip_limiter.
type RequestClientIPLimiterConfig struct {
	// Addresses that are limited, each for itself. Without any all are.
	IP conf.Strings `conf:"ip"`

	ClassicLimitConfig `conf:",inline"`
}

// RequestClientIPLimiter declares the filter request_client_ip_limiter.
func RequestClientIPLimiter() flows.Factory[RequestClientIPLimiterConfig] {
	return byClassicKey("request_client_ip_limiter", "ip", "ip",
		func(c *RequestClientIPLimiterConfig) (conf.Strings, *ClassicLimitConfig) {
			return c.IP, &c.ClassicLimitConfig
		},
		flows.Example{Title: "256 requests a second of two addresses", YAML: `- request_client_ip_limiter: {ip: [127.0.0.1, 127.0.0.2], max_requests: 256, action: drop}`})
}

// RequestUserLimiterConfig is the configuration of request_user_limiter.
type RequestUserLimiterConfig struct {
	// Users that are limited, each for itself. Without any all are; requests without a user never are.
	User conf.Strings `conf:"user"`

	ClassicLimitConfig `conf:",inline"`
}

// RequestUserLimiter declares the filter request_user_limiter.
func RequestUserLimiter() flows.Factory[RequestUserLimiterConfig] {
	return byClassicKey("request_user_limiter", "user", "user",
		func(c *RequestUserLimiterConfig) (conf.Strings, *ClassicLimitConfig) {
			return c.User, &c.ClassicLimitConfig
		},
		flows.Example{Title: "256 requests a second of two users", YAML: `- request_user_limiter: {user: [elastic, medcl], max_requests: 256, action: drop, message: "please slow down"}`})
}

// RequestHostLimiterConfig is the configuration of request_host_limiter.
type RequestHostLimiterConfig struct {
	// Hosts that are limited, each for itself. Without any all are.
	Host conf.Strings `conf:"host"`

	ClassicLimitConfig `conf:",inline"`
}

// RequestHostLimiter declares the filter request_host_limiter.
func RequestHostLimiter() flows.Factory[RequestHostLimiterConfig] {
	return byClassicKey("request_host_limiter", "host", "host",
		func(c *RequestHostLimiterConfig) (conf.Strings, *ClassicLimitConfig) {
			return c.Host, &c.ClassicLimitConfig
		},
		flows.Example{Title: "256 requests a second of one host", YAML: `- request_host_limiter: {host: [api.example.com], max_requests: 256, action: drop}`})
}

// RequestAPIKeyLimiterConfig is the configuration of request_api_key_limiter.
type RequestAPIKeyLimiterConfig struct {
	// Ids of API keys that are limited, each for itself. Without any all are; requests without an API key never are.
	ID conf.Strings `conf:"id"`

	ClassicLimitConfig `conf:",inline"`
}

// RequestAPIKeyLimiter declares the filter request_api_key_limiter.
func RequestAPIKeyLimiter() flows.Factory[RequestAPIKeyLimiterConfig] {
	return byClassicKey("request_api_key_limiter", "api_key", "id",
		func(c *RequestAPIKeyLimiterConfig) (conf.Strings, *ClassicLimitConfig) {
			return c.ID, &c.ClassicLimitConfig
		},
		flows.Example{Title: "256 requests a second of one API key", YAML: `- request_api_key_limiter: {id: [VuaCfGcBCdbkQm-e5aOx], max_requests: 256, action: drop}`})
}

// ContextLimiterConfig is the configuration of context_limiter.
type ContextLimiterConfig struct {
	// Properties of a request that make the key together: _ctx.request.path, host, method, user, header.NAME and
	// query_args.NAME, and _ctx.remote_ip. Requests that lack one of them share a budget.
	Context conf.Strings `conf:"context,required"`

	ClassicLimitConfig `conf:",inline"`
}

// contextSelectors are the selectors that stand for properties of the classic context.
var contextSelectors = map[string]string{
	"_ctx.request.path": "path", "_ctx.request.host": "host", "_ctx.request.method": "method", "_ctx.request.user": "user",
	"_ctx.remote_ip": "ip", "_ctx.request.header.": "header:", "_ctx.request.query_args.": "query:",
}

// contextSelector returns the selector that stands for a property of the classic context.
func contextSelector(name string) (string, bool) {
	if s, ok := contextSelectors[name]; ok && !strings.HasSuffix(s, ":") {
		return s, true
	}
	for prefix, s := range contextSelectors {
		if rest, ok := strings.CutPrefix(name, prefix); ok && strings.HasSuffix(s, ":") && rest != "" {
			return s + rest, true
		}
	}
	return "", false
}

// ContextLimiter declares the filter context_limiter.
func ContextLimiter() flows.Factory[ContextLimiterConfig] {
	return flows.Factory[ContextLimiterConfig]{
		Name: "context_limiter", Family: "limit",
		Summary: "Is rate_limit with a key of several selectors, under its classic name.",
		Default: func() ContextLimiterConfig { return ContextLimiterConfig{ClassicLimitConfig: defaultClassicLimit()} },
		Build: func(b *flows.Builder, c ContextLimiterConfig) flows.Filter {
			var key conf.Strings
			for i, name := range c.Context {
				s, ok := contextSelector(name)
				if !ok {
					known := make([]string, 0, len(contextSelectors))
					for text := range contextSelectors {
						known = append(known, text)
					}
					slices.Sort(known)
					q := b.Problems.Errorf(b.Node("context").Item(i), "%q is no property that a limit can be by", name)
					if q.Suggestion, ok = conf.Nearest(name, known); !ok {
						q.Message += ": known are " + strings.Join(known, ", ")
					}
					continue
				}
				key = append(key, s)
			}
			if len(key) < len(c.Context) {
				return nil
			}
			return c.build(b, key, "context", nil)
		},
		Examples: []flows.Example{
			{Title: "By path, host and a field", YAML: `- context_limiter:
    max_requests: 10
    action: drop
    context: [_ctx.request.path, _ctx.request.header.Host, _ctx.request.header.Env]`},
		},
	}
}

// BulkRequestThrottleConfig is the configuration of bulk_request_throttle.
type BulkRequestThrottleConfig struct {
	// Limits by the name of an index, or by a pattern. They are of what the lines of a bulk write, or, where a line names no
	// index, the path. Each index that a pattern is for has a budget of its own. Where several are for one index its name counts,
	// or else the first pattern.
	Indices map[string]ClassicLimitConfig `conf:"indices,required"`
}

// BulkRequestThrottle declares the filter bulk_request_throttle.
func BulkRequestThrottle() flows.Factory[BulkRequestThrottleConfig] {
	return flows.Factory[BulkRequestThrottleConfig]{
		Name: "bulk_request_throttle", Family: "limit",
		Summary: "Is rate_limit with the key index for bulks, under its classic name.",
		Default: func() BulkRequestThrottleConfig { return BulkRequestThrottleConfig{} },
		Build:   buildBulkRequestThrottle,
		Examples: []flows.Example{
			{Title: "Documents of one index, bytes of some others", YAML: `- bulk_request_throttle:
    indices:
      test: {max_requests: 5, action: drop, message: "test writing too fast", log_warn_message: true}
      filebeat-*: {max_bytes: 512, action: drop, message: "filebeat indices writing too fast", log_warn_message: true}`},
			{Title: "Let bulks wait for 20,000 documents a second", YAML: `- bulk_request_throttle:
    indices:
      "*": {max_requests: 20000, retry_delay_in_ms: 100, max_retry_times: 10}`},
		},
	}
}

func buildBulkRequestThrottle(b *flows.Builder, c BulkRequestThrottleConfig) flows.Filter {
	r := defaultRateLimit()
	names := b.Node("indices").Keys() // in the order in which they are written
	if len(names) == 0 {
		b.Errorf("indices", "no indices: the filter would let everything pass")
		return nil
	}
	isPattern := func(name string) bool { return strings.Contains(name, "*") }
	earlier := slices.DeleteFunc(slices.Clone(names), isPattern)
	var places []*conf.Node
	for _, name := range names {
		one, at := c.Indices[name], b.Node("indices").Get(name)
		warnOfUpperCase(b.Problems, at, name)
		var like RateLimitLimit
		like.SetDefaults()
		like.Name, like.Key, like.Index, like.bulks = name+":", conf.Strings{"index"}, conf.Strings{name}, true
		if isPattern(name) {
			like.except = slices.Clone(earlier)
			earlier = append(earlier, name)
		}
		limits := one.limits(b.Problems, at, like, "bulk_docs", nil)
		if len(limits) == 0 {
			b.Problems.Errorf(at, "neither max_requests nor max_bytes for %s: the limit would let everything pass", name)
		}
		for range limits {
			places = append(places, at)
		}
		r.Limits = append(r.Limits, limits...)
		r.LogRefusals = r.LogRefusals || one.LogWarnMessage
	}
	if len(r.Limits) == 0 {
		return nil
	}
	return assemble(b, r, func(_ string, i int) *conf.Node { return places[i] })
}

// build makes the rate_limit that c stands for. With values only those have a budget, each its own. field is where key and
// values are configured.
func (c *ClassicLimitConfig) build(b *flows.Builder, key conf.Strings, field string, values conf.Strings) flows.Filter {
	r := defaultRateLimit()
	r.LogRefusals = c.LogWarnMessage
	var like RateLimitLimit
	like.SetDefaults()
	like.Key, like.only = key, len(values) > 0
	if len(key) == 1 {
		like.Missing = "skip"
	}
	r.Limits = c.limits(b.Problems, b.Node(""), like, "requests", values)
	if len(r.Limits) == 0 {
		b.Errorf("", "neither max_requests nor max_bytes: the filter would let everything pass")
		return nil
	}
	return assemble(b, r, func(string, int) *conf.Node { return b.Node(field) })
}

// limits returns the limits that c, which stands at n, means: of max_requests, counted in a unit, and of max_bytes. What c does
// not say they have from like, whose name begins theirs.
func (c *ClassicLimitConfig) limits(p *conf.Problems, n *conf.Node, like RateLimitLimit, counted string, values conf.Strings) []RateLimitLimit {
	var out []RateLimitLimit
	add := func(name, unit string, most, burst int64, kind conf.Unit) {
		if most == 0 {
			if burst > 0 {
				p.Errorf(n.At("burst_"+name), "burst_%s without max_%s, which would be what is limited", name, name)
			}
			return
		}
		l := like
		l.Name, l.Unit = like.Name+name, unit
		l.Message, l.Status = c.Message, &c.Status
		l.Rate, l.Burst = conf.Rate{Events: most, Per: c.Interval.Std(), Unit: kind}, &conf.Amount{N: most, Unit: kind}
		if burst > 0 {
			l.Burst.N = burst
		}
		l.OnLimit = "reject"
		if c.Action == "retry" {
			wait := conf.Duration(c.RetryDelay * c.MaxRetryTimes * int64(time.Millisecond))
			l.OnLimit, l.MaxWait = "wait", &wait
		}
		for _, value := range values {
			l.Overrides = append(l.Overrides, RateLimitOverride{Key: conf.Strings{value}, Rate: &l.Rate, Burst: l.Burst})
		}
		out = append(out, l)
	}
	add("requests", counted, valueOf(c.MaxRequests), valueOf(c.BurstRequests), conf.Count)
	add("bytes", "request_bytes", int64(valueOf(c.MaxBytes)), int64(valueOf(c.BurstBytes)), conf.Data)
	if c.FailedRetryMessage != "" {
		p.Warnf(n.At("failed_retry_message"), "failed_retry_message has no effect: message is the text of all refusals")
	}
	return out
}

// valueOf returns what p points to, or zero.
func valueOf[T any](p *T) T {
	if p == nil {
		var none T
		return none
	}
	return *p
}
