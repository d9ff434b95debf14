package main

import (
	"fmt"
	"strings"

	"weir/flows"
	"weir/internal/app"
)

type checkCmd struct {
	files
	Strict  bool    `help:"Take warnings for errors."`
	Format  string  `enum:"text,json" default:"text" help:"How problems are printed: text or json."`
	Explain *string `placeholder:"REQUEST" help:"Print what a request such as 'POST /logs-1/_search' would meet."`
	Entry   string  `help:"With --explain: the entry that the request comes to. Default: the first one."`
}

// Run checks the configuration. It does no I/O beyond reading the files, and looking whether those are there that they name.
func (c *checkCmd) Run(e env) error {
	plan, problems := app.Load(c.options())
	if plan != nil {
		plan.WarnFiles(problems)
	}
	var err error
	if c.Format == "json" {
		err = problems.WriteJSON(e.stdout)
	} else {
		err = problems.WriteText(e.stdout)
	}
	if err != nil {
		return err
	}
	errs, warnings := problems.Count()
	if errs > 0 || c.Strict && warnings > 0 {
		return &exitError{code: exitFailed}
	}
	if c.Explain != nil {
		return c.explain(e, plan)
	}
	if c.Format == "text" {
		fmt.Fprintf(e.stdout, "ok: %d warnings\n", warnings)
	}
	return nil
}

// explain prints the rule, the flow and the filters that a request would meet.
func (c *checkCmd) explain(e env, plan *app.Plan) error {
	method, target, ok := strings.Cut(strings.TrimSpace(*c.Explain), " ")
	target = strings.TrimSpace(target)
	if !ok || !strings.HasPrefix(target, "/") {
		return &exitError{code: exitUsage, err: fmt.Errorf("--explain takes a method and a path, such as 'POST /logs-1/_search', not %q", *c.Explain)}
	}
	entry, err := plan.Entry(c.Entry)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	x := flows.Explaining(method, target)
	way := plan.Routers[entry.Router].Explain(x)
	call := x.Call()
	fmt.Fprintf(e.stdout, "request  %s %s\n", method, target)
	fmt.Fprintf(e.stdout, "api      %s (class %s, repeatable as %s)\n", call, call.Class, call.Idempotency)
	if names, err := x.Indices(nil); err == nil && len(names) > 0 {
		fmt.Fprintf(e.stdout, "index    %s\n", strings.Join(names, ", "))
	}
	fmt.Fprintf(e.stdout, "entry    %s (%s)\n", entry.Name, entry.Network.Binding)
	if way.Rule == "" {
		fmt.Fprintf(e.stdout, "router   %s: no rule matches, default flow\n", way.Router)
	} else {
		fmt.Fprintf(e.stdout, "router   %s: rule %s (%s)\n", way.Router, way.Rule, way.Line)
	}
	for _, f := range way.Flows {
		printFlow(e, "flow", f, x)
	}
	if way.Trace != nil {
		printFlow(e, "then", way.Trace, x)
	}
	return nil
}

func printFlow(e env, label string, f *flows.Flow, x *flows.Exchange) {
	fmt.Fprintf(e.stdout, "%-8s %s\n", label, f.Name())
	for i, s := range f.Steps() {
		line := s.Kind
		if s.Name != s.Kind {
			line += " (" + s.Name + ")"
		}
		if s.When != "" {
			line += "  when " + s.When
			if !f.Meets(i, x) {
				line += "  -- passed over"
			}
		}
		fmt.Fprintf(e.stdout, "           %d. %s\n", i+1, line)
	}
}
