package admin

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

func (s *Server) alive(w http.ResponseWriter, _ *http.Request) {
	WriteJSON(w, http.StatusOK, map[string]bool{"alive": true})
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	var reasons []string
	if s.opts.Ready != nil {
		reasons = s.opts.Ready()
	}
	status := http.StatusOK
	if len(reasons) > 0 {
		status = http.StatusServiceUnavailable
	}
	WriteJSON(w, status, struct {
		Ready   bool     `json:"ready"`
		Reasons []string `json:"reasons,omitempty"`
	}{len(reasons) == 0, reasons})
}

func (s *Server) info(w http.ResponseWriter, _ *http.Request) {
	WriteJSON(w, http.StatusOK, struct {
		Name string `json:"name"`
		Info
		StartTime time.Time `json:"start_time"`
		Uptime    float64   `json:"uptime_seconds"`
	}{"weir", s.opts.Info(), s.started.UTC().Truncate(time.Millisecond), time.Since(s.started).Seconds()})
}

func (s *Server) reload(w http.ResponseWriter, _ *http.Request) {
	if s.opts.Reload == nil {
		WriteError(w, http.StatusNotImplemented, "unsupported_operation_exception", "this process cannot reload")
		return
	}
	if !s.reloading.TryLock() {
		WriteError(w, http.StatusConflict, "illegal_state_exception", "a reload is running")
		return
	}
	defer s.reloading.Unlock()
	// A reload may wait for nodes and files longer than an answer may take. Deadlines fail only without a connection.
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Time{})
	err := s.opts.Reload()
	_ = rc.SetWriteDeadline(time.Now().Add(answerTimeout))
	if err == nil {
		WriteJSON(w, http.StatusOK, map[string]bool{"acknowledged": true})
		return
	}
	const kind = "configuration_exception"
	answer := failure{Status: http.StatusBadRequest}
	answer.Error.cause = cause{kind, "the new configuration was refused, the old one stays in force"}
	for line := range strings.Lines(err.Error()) {
		answer.Error.RootCause = append(answer.Error.RootCause, cause{kind, strings.TrimSuffix(line, "\n")})
	}
	var detailed interface {
		error
		json.Marshaler
	}
	if errors.As(err, &detailed) {
		answer.Error.Problems = detailed
	}
	WriteJSON(w, answer.Status, answer)
}

// WriteJSON answers with v as JSON. What cannot be marshalled is a mistake of the program and answered with 500.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		WriteError(w, http.StatusInternalServerError, "exception", err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// failure is an error in the shape that Elasticsearch gives to its own.
type failure struct {
	Error struct {
		RootCause []cause `json:"root_cause"`
		cause
		Problems json.Marshaler `json:"problems,omitempty"`
	} `json:"error"`
	Status int `json:"status"`
}

type cause struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

// WriteError answers with an error in the shape that Elasticsearch gives to its own.
func WriteError(w http.ResponseWriter, status int, kind, reason string) {
	answer := failure{Status: status}
	answer.Error.cause = cause{kind, reason}
	answer.Error.RootCause = []cause{answer.Error.cause}
	WriteJSON(w, status, answer)
}
