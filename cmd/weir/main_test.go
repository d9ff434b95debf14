package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets scripts run this program as weir.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weir": func() { os.Exit(run(os.Args[1:], env{os.Stdout, os.Stderr})) },
	})
}

// patience is how long scripts wait for what must happen.
const patience = 30 * time.Second

// TestScripts runs the scripts in testdata/script. They have these commands besides testscript's own, and REPOSITORY, the
// top of the repository, PORT and ADMIN_PORT, two free ports, as variables:
//
//	json FILE                      the file is JSON
//	answer STATUS METHOD URL [RE]  the URL answers so, at last, with a body that RE matches
//	signal SIGNAL                  sends a signal to the background command
//	documented URL PAGE            every metric at the URL stands in the page
func TestScripts(t *testing.T) {
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("REPOSITORY", repository)
			for _, name := range []string{"PORT", "ADMIN_PORT"} {
				port, err := freePort()
				if err != nil {
					return err
				}
				e.Setenv(name, strconv.Itoa(port))
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"json": isJSON, "answer": answer, "signal": sendSignal, "documented": documented,
		},
	})
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func isJSON(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 || neg {
		ts.Fatalf("usage: json FILE")
	}
	if !json.Valid([]byte(ts.ReadFile(args[0]))) {
		ts.Fatalf("%s is not JSON", args[0])
	}
}

// get makes a request.
func get(ctx context.Context, method, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// answer asks until the answer is the one that is wanted, or patience ends.
func answer(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 3 || len(args) > 4 || neg {
		ts.Fatalf("usage: answer STATUS METHOD URL [REGEXP]")
	}
	want := regexp.MustCompile("")
	if len(args) == 4 {
		re, err := regexp.Compile(args[3])
		ts.Check(err)
		want = re
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		status, body, err := get(ctx, args[1], args[2])
		if err == nil && strconv.Itoa(status) == args[0] && want.MatchString(body) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			ts.Fatalf("%s %s: want %s, last: %d %s %v", args[1], args[2], args[0], status, body, err)
		}
	}
}

var signals = map[string]syscall.Signal{"HUP": syscall.SIGHUP, "TERM": syscall.SIGTERM, "INT": syscall.SIGINT}

func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 || neg || signals[args[0]] == 0 {
		ts.Fatalf("usage: signal HUP|TERM|INT")
	}
	commands := ts.BackgroundCmds()
	if len(commands) != 1 {
		ts.Fatalf("%d commands run in the background, want one", len(commands))
	}
	ts.Check(commands[0].Process.Signal(signals[args[0]]))
}

// documented compares the metrics of a running gateway with the page that describes all.
func documented(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || neg {
		ts.Fatalf("usage: documented URL PAGE")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	status, body, err := get(ctx, "GET", args[0])
	if err != nil || status != http.StatusOK {
		ts.Fatalf("%s: %d %v", args[0], status, err)
	}
	page := ts.ReadFile(args[1])
	var missing []string
	metrics := regexp.MustCompile(`(?m)^# TYPE (weir_\w+) `).FindAllStringSubmatch(body, -1)
	for _, m := range metrics {
		if !strings.Contains(page, "| `"+m[1]+"` |") {
			missing = append(missing, m[1])
		}
	}
	if len(metrics) < 10 || len(missing) > 0 {
		ts.Fatalf("of %d metrics these are not in %s: %q", len(metrics), args[1], missing)
	}
}

// TestExitCodesAreDocumented holds that help and guide name every exit code.
func TestExitCodesAreDocumented(t *testing.T) {
	guide, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if code := run([]string{"--help"}, env{&out, &out}); code != exitOK {
		t.Errorf("--help: exit code %d", code)
	}
	help := strings.Join(strings.Fields(out.String()), " ")
	for _, code := range []int{exitOK, exitFailed, exitUsage, exitCutOff, exitLost} {
		if !strings.Contains(string(guide), fmt.Sprintf("\n| %d | ", code)) {
			t.Errorf("docs/operations.md does not say what exit code %d means", code)
		}
		if !slices.Contains(strings.Fields(help), strconv.Itoa(code)) {
			t.Errorf("--help does not say what exit code %d means", code)
		}
	}
}
