package enqueue

import (
	"context"
	"math"
	"net/http"
	"time"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
	"weir/queue/message"
)

// RetryLimiterConfig is the configuration of retry_limiter.
type RetryLimiterConfig struct {
	// How often a request may be made again after the first time.
	MaxRetryTimes int `conf:"max_retry_times" min:"0" max:"1000000"`
	// Queue for the requests that were made that often in vain.
	QueueName string `conf:"queue_name,required"`
	// Longest wait for the disk; then the request is made again later.
	Wait conf.Duration `conf:"wait" min:"1ms" max:"10m"`
	// Classic: marks on such requests.
	TagOnSuccess conf.Strings `conf:"tag_on_success" deprecated:"requests have no tags; those that were given up are in queue_name"`
}

// retryLimiter puts requests aside that were made too often.
type retryLimiter struct {
	config RetryLimiterConfig
	messages
}

var (
	_ flows.Starter = (*retryLimiter)(nil)
	_ flows.Stopper = (*retryLimiter)(nil)
)

// RetryLimiter declares the filter retry_limiter.
func RetryLimiter() flows.Factory[RetryLimiterConfig] {
	return flows.Factory[RetryLimiterConfig]{
		Name: "retry_limiter", Family: "queue",
		Summary: "Puts requests that the processor queue_consumer has made too often in vain into another queue, so that those behind them have their turn. " +
			"Requests of clients pass. Attempts are counted from when the consumer began.",
		Default: func() RetryLimiterConfig {
			return RetryLimiterConfig{MaxRetryTimes: 100, Wait: conf.Duration(5 * time.Second)}
		},
		Build: func(b *flows.Builder, c RetryLimiterConfig) flows.Filter {
			f := &retryLimiter{config: c}
			if !f.Build(b, c.QueueName, &words) {
				return nil
			}
			return f
		},
		Examples: []flows.Example{
			{Title: "Some 16 minutes of attempts, whose pauses grow to 10 seconds", YAML: "- retry_limiter: {max_retry_times: 100, queue_name: given_up}"},
		},
	}
}

// Serve implements flows.Filter.
func (f *retryLimiter) Serve(x *flows.Exchange, next flows.Handler) error {
	if x.Replay == nil || x.Replay.Attempts <= f.config.MaxRetryTimes {
		return next.Serve(x)
	}
	r := &x.Request
	body, err := r.Body.Bytes(math.MaxInt64)
	if err != nil {
		return err
	}
	m := message.Message{
		Time: x.Replay.Time, Method: string(r.Method), Target: string(r.Target), Host: string(r.Host), ClientIP: r.ClientIP, User: string(r.User), Body: body,
	}
	for _, field := range r.Header.Fields() {
		m.Fields = append(m.Fields, message.Field{Name: string(field.Name), Value: string(field.Value)})
	}
	ctx, cancel := context.WithTimeoutCause(f.Life, f.config.Wait.Std(), errWait)
	defer cancel()
	if err := f.keep(ctx, &m); err != nil {
		return elastic.Errorf(http.StatusServiceUnavailable, "queue_exception", "the queue [%s] does not take what was made too often", f.Name).Because(err)
	}
	x.Replay.Aside = true
	x.Reply(http.StatusAccepted, "", nil)
	return nil
}
