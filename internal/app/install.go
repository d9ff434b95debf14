package app

import (
	"context"
	"errors"
	"log/slog"

	"weir/elastic"
	"weir/internal/obs"
	"weir/pipeline"
)

// Install installs the index templates, data streams and lifecycle policies that the plan asks for, as a gateway does when
// it starts, and waits until that is done. It returns what could not be installed.
func (plan *Plan) Install(ctx context.Context, logger *slog.Logger) error {
	var failed error
	for _, t := range plan.Templates {
		c, err := elastic.NewCluster(plan.Clusters[t.Cluster], elastic.DefaultPool(), elastic.Deps{Metrics: obs.NewMetrics(), Logger: logger})
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		c.Start()
		failed = errors.Join(failed, pipeline.Setup(ctx, c, t, logger))
		c.Close()
	}
	return failed
}
