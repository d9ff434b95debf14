package obs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestLoggerHidesSecrets(t *testing.T) {
	target := &url.URL{Scheme: "https", User: url.UserPassword("u", "p4ss"), Host: "es"}
	f := func(key string, value any) {
		t.Helper()
		for _, format := range []string{"text", "json"} {
			var buf bytes.Buffer
			logger, err := NewLogger(&buf, slog.LevelInfo, format)
			if err != nil {
				t.Fatal(err)
			}
			logger.With(key, value).WithGroup("g").Info("to https://u:p4ss@es", key, value)
			if strings.Contains(buf.String(), "p4ss") || strings.Count(buf.String(), "***") < 2 {
				t.Errorf("%s: %s", format, buf.String())
			}
		}
	}
	f("url", "https://u:p4ss@es")
	f("url", target)
	f("url", *target)
	f("user", target.User)
	f("err", fmt.Errorf("get https://u:p4ss@es: %w", errors.New("refused")))
	f("hosts", []string{"https://u:p4ss@es"})
	f("header", http.Header{"Authorization": {"Basic p4ss"}})
	f("password", "p4ss")
	f("Authorization", "Basic p4ss")
	f("lazy", lazy{})
}

type lazy struct{}

func (lazy) LogValue() slog.Value { return slog.StringValue("https://u:p4ss@es") }

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestLoggerSurvivesNilPointerErrors(t *testing.T) {
	var buf bytes.Buffer
	logger, err := NewLogger(&buf, slog.LevelInfo, "text")
	if err != nil {
		t.Fatal(err)
	}
	logger.Info("m", "err", (*nilError)(nil))
	if !strings.Contains(buf.String(), "<nil>") {
		t.Errorf("got %q", buf.String())
	}
}

func TestLoggerFormats(t *testing.T) {
	var buf bytes.Buffer
	logger, err := NewLogger(&buf, slog.LevelInfo, "json")
	if err != nil {
		t.Fatal(err)
	}
	logger.Info("started", "addr", "127.0.0.1:2900", "count", 3)
	var record map[string]any
	if err := json.Unmarshal(buf.Bytes(), &record); err != nil {
		t.Fatal(err)
	}
	if record["msg"] != "started" || record["level"] != "INFO" || record["count"] != 3.0 {
		t.Errorf("got %v", record)
	}
	if _, err := NewLogger(&buf, slog.LevelInfo, "xml"); err == nil || !strings.Contains(err.Error(), `"xml"`) {
		t.Errorf("format xml: %v", err)
	}
}

func TestLoggerLevelCanChange(t *testing.T) {
	var buf bytes.Buffer
	var level slog.LevelVar
	logger, err := NewLogger(&buf, &level, "text")
	if err != nil {
		t.Fatal(err)
	}
	logger.Debug("one")
	level.Set(slog.LevelDebug)
	logger.Debug("two")
	if strings.Contains(buf.String(), "one") || !strings.Contains(buf.String(), "two") {
		t.Errorf("got %q", buf.String())
	}
}

func TestLoggerBoundsValues(t *testing.T) {
	f := func(value any) {
		t.Helper()
		var buf bytes.Buffer
		logger, err := NewLogger(&buf, slog.LevelInfo, "text")
		if err != nil {
			t.Fatal(err)
		}
		logger.Info("m", "v", value)
		if buf.Len() > maxLogValue+200 || !strings.Contains(buf.String(), "bytes more)") {
			t.Errorf("a line of %d bytes", buf.Len())
		}
	}
	f(strings.Repeat("x", 1<<20))
	f(strings.Repeat("ü", 1<<19))
	f(errors.New(strings.Repeat("x", 1<<20)))
	f([]string{strings.Repeat("x", 1<<20)})
}
