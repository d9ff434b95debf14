package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"weir/filters"
	"weir/internal/conf"
	"weir/internal/docs"
)

type filtersCmd struct {
	Name string `arg:"" optional:"" help:"Filter to show."`
}

// Run lists the filters, or shows one.
func (c *filtersCmd) Run(e env) error {
	reg := filters.Registry()
	if c.Name == "" {
		w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
		for _, k := range reg.Kinds() {
			fmt.Fprintf(w, "%s\t%s\t%s\n", k.Name, k.Family, k.Summary)
		}
		return w.Flush()
	}
	k := reg.Kind(c.Name)
	if k == nil {
		err := fmt.Errorf("no filter called %q; `weir filters` lists them", c.Name)
		if near, ok := conf.Nearest(c.Name, reg.Names()); ok {
			err = fmt.Errorf("no filter called %q; did you mean %q?", c.Name, near)
		}
		return &exitError{code: exitUsage, err: err}
	}
	_, err := io.WriteString(e.stdout, docs.New(reg).FilterText(k))
	return err
}
