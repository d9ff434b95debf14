package transform

import (
	"bytes"
	"strings"

	"weir/elastic"
	"weir/flows"
	"weir/internal/wire"
)

// MountConfig is the configuration of mount.
type MountConfig struct {
	// Path under which the filters below it stand, such as /search. Whole segments count: /search/i is below it, /searches
	// is not.
	Path string `conf:"path,required"`
}

type mount struct{ prefix []byte }

// Mount declares the filter mount.
func Mount() flows.Factory[MountConfig] {
	return flows.Factory[MountConfig]{
		Name: "mount", Family: "transform",
		Summary: "Takes a path off the front of the request's, byte for byte, and puts it back in front of the Location of the answer. What the filters below see, nodes included, is what remains. " +
			"A request for anything else is refused with 503: let the router lead only requests below the path to the flow.",
		Default: func() MountConfig { return MountConfig{} },
		Build: func(b *flows.Builder, c MountConfig) flows.Filter {
			line, err := wire.ParseRequestLine([]byte("GET " + c.Path + " HTTP/1.1"))
			if err != nil || !strings.HasPrefix(c.Path, "/") || strings.HasSuffix(c.Path, "/") || bytes.ContainsAny(line.Target, "?#%") {
				b.Errorf("path", "%q is not a path such as /search, without a slash at its end and without encoded characters", c.Path)
				return nil
			}
			return &mount{[]byte(c.Path)}
		},
		Examples: []flows.Example{{Title: "A cluster under a path", YAML: "- mount: {path: /search}\n- elasticsearch: {elasticsearch: main}"}},
	}
}

func (f *mount) Serve(x *flows.Exchange, next flows.Handler) error {
	rest, ok := bytes.CutPrefix(x.Request.Target, f.prefix)
	switch {
	case !ok || len(rest) > 0 && rest[0] != '/' && rest[0] != '?':
		return elastic.Errorf(503, "no_route_exception", "[%s] is not below [%s]", x.Request.Path, f.prefix)
	case len(rest) == 0 || rest[0] == '?':
		rest = append([]byte{'/'}, rest...)
	}
	x.Retarget(rest)
	if err := next.Serve(x); err != nil {
		return err
	}
	if l := x.Response.Header.Get("location"); len(l) > 1 && l[0] == '/' && l[1] != '/' {
		x.Response.Header.Set("Location", string(f.prefix)+string(l))
	}
	return nil
}
