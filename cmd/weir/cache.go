package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"weir/filters/cache"
)

type cacheCmd struct {
	Explain cacheExplainCmd `cmd:"" help:"Print whether a request is cacheable, what its key is made of, and why. A running gateway says the same at POST /_weir/cache/explain, with what it keeps."`
}

type cacheExplainCmd struct {
	files
	Request string   `arg:"" help:"Method and path of the request, such as 'POST /logs-1/_search?size=0'."`
	Body    string   `placeholder:"JSON" help:"Body of the request, or @FILE."`
	Header  []string `short:"H" sep:"none" placeholder:"FIELD" help:"Header field of the request, such as 'Accept: application/json'; may be repeated."`
	Entry   string   `help:"Entry that the request comes to. Default: the first one."`
	Format  string   `enum:"text,json" default:"text" help:"text or json."`
}

// Run explains a request by the configuration alone: nothing is asked of a running gateway or of a node.
func (c *cacheExplainCmd) Run(e env) error {
	plan, err := c.load(e)
	if err != nil {
		return err
	}
	q, err := c.question()
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	x, err := q.Ask(plan.Way)
	if errors.Is(err, cache.ErrNoCache) {
		return &exitError{code: exitFailed, err: err}
	}
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	if c.Format == "json" {
		return json.NewEncoder(e.stdout).Encode(x)
	}
	printExplanation(e, &x)
	return nil
}

func (c *cacheExplainCmd) question() (*cache.Question, error) {
	method, target, ok := strings.Cut(strings.TrimSpace(c.Request), " ")
	if !ok {
		return nil, fmt.Errorf("a request is a method and a path, such as 'POST /logs-1/_search', not %q", c.Request)
	}
	q := &cache.Question{Entry: c.Entry, Method: method, Path: strings.TrimSpace(target), Header: map[string]string{}}
	for _, field := range c.Header {
		name, value, ok := strings.Cut(field, ":")
		if !ok {
			return nil, fmt.Errorf("a header field is a name, a colon and a value, not %q", field)
		}
		q.Header[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	text := c.Body
	if name, isFile := strings.CutPrefix(c.Body, "@"); isFile {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the body: %w", err)
		}
		text = string(data)
	}
	if text != "" {
		body, err := json.Marshal(text)
		if err != nil {
			return nil, fmt.Errorf("read the body: %w", err)
		}
		q.Body = body
	}
	return q, nil
}

func printExplanation(e env, x *cache.Explanation) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(e.stdout, "%-10s %s\n", name, value)
		}
	}
	if x.Flow != "" {
		line("flow", x.Flow+" ("+x.Filter+")")
	}
	line("api", x.API)
	if x.Cacheable {
		line("cacheable", "yes: "+x.Because)
	} else {
		line("cacheable", "no ("+x.Reason+"): "+x.Because)
	}
	line("body", x.Body)
	line("args", strings.Join(x.Args, ", "))
	line("dropped", strings.Join(x.Dropped, ", "))
	line("identity", strings.Join(x.Identity, ", "))
	line("shared by", x.SharedBy)
	line("ttl", x.TTL)
	line("ttl only", x.AgeBounds)
	for i := range x.Searches {
		fmt.Fprintf(e.stdout, "\nsearch %d\n", i+1)
		printExplanation(e, &x.Searches[i])
	}
}
