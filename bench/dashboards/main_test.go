package main

import (
	"testing"
	"time"
)

// A short run: dashboards that look at the same thing reach the cluster a twentieth as often as they ask, and are right.
func TestDashboards(t *testing.T) {
	results, err := run(t.Context(), options{viewers: 30, refreshes: 5, every: 500 * time.Millisecond, asyncWait: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != len(scenes) {
		t.Fatalf("got %d results of %d scenes", len(results), len(scenes))
	}
	for _, r := range results {
		t.Log(r)
		if r.asked != 30*5*panels || r.upstream == 0 || r.wrong > 0 {
			t.Errorf("got %s", r)
		}
		if !r.scene.relative && r.upstream*20 > r.asked {
			t.Errorf("%s: want at least 20-fold fewer", r)
		}
	}
}

// What a viewer sees is compared with what the cluster says: answers of another time are found out.
func TestWrong(t *testing.T) {
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	versions := []version{
		{from: at(0), until: at(10), answers: []string{"old"}},
		{from: at(9), answers: []string{"new"}},
	}
	f := func(writes bool, asked int, answer string, want int64) {
		t.Helper()
		s := &stage{options: options{every: 10 * time.Second}, scene: scene{writes: writes}, versions: versions, seen: []sight{{at(asked), at(asked), []string{answer}}}}
		if got := s.wrong(); got != want {
			t.Errorf("%s at %d s: %d wrong answers, want %d", answer, asked, got, want)
		}
	}
	f(false, 5, "old", 0)
	f(false, 5, "new", 1)
	f(false, 12, "old", 1)
	f(true, 19, "old", 0)
	f(true, 22, "old", 1)
	f(true, 22, "new", 0)
	f(true, 22, "other", 1)
}
