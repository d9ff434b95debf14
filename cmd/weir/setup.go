package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"weir/internal/app"
	"weir/internal/dashboards"
	"weir/internal/obs"
)

type setupCmd struct {
	files
	Kibana     string        `placeholder:"URL" env:"WEIR_KIBANA" help:"Import the dashboards into this Kibana, such as https://user:password@kibana:5601. The variable keeps the password out of the command line."`
	Dashboards string        `placeholder:"URL" env:"WEIR_DASHBOARDS" help:"Import the dashboards into this OpenSearch Dashboards."`
	Pattern    string        `help:"Indices that the dashboards look at. Default: gateway_requests* and the data streams of the configuration."`
	Wait       time.Duration `default:"1m" help:"Longest time that everything may take."`
}

// Run installs what records and dashboards need. What can be installed is, whatever else fails.
func (c *setupCmd) Run(e env) error {
	plan, err := c.load(e)
	if err != nil {
		return err
	}
	logger, closeLog, err := openLog(plan.Config, e.stderr)
	if err != nil {
		return err
	}
	defer closeLog()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()

	if len(plan.Templates) == 0 {
		logger.Warn("no module elastic has init_template: true, so no index template is installed")
	}
	failed := plan.Install(ctx, logger)
	for _, t := range []struct {
		program dashboards.Program
		url     string
	}{{dashboards.Kibana, c.Kibana}, {dashboards.OpenSearchDashboards, c.Dashboards}} {
		if t.url == "" {
			continue
		}
		n, err := dashboards.Install(ctx, http.DefaultClient, t.program, t.url, c.pattern(plan))
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("import into %s: %w", t.program, obs.RedactError(err)))
			continue
		}
		fmt.Fprintf(e.stdout, "%d saved objects are in %s\n", n, t.program)
	}
	return failed
}

// pattern returns the indices that the dashboards look at.
func (c *setupCmd) pattern(plan *app.Plan) string {
	if c.Pattern != "" {
		return c.Pattern
	}
	list := []string{dashboards.DefaultPattern}
	for _, t := range plan.Templates {
		if s := t.Stream.Name; s != "" && !strings.HasPrefix(s, strings.TrimSuffix(dashboards.DefaultPattern, "*")) && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return strings.Join(list, ",")
}
