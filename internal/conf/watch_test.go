package conf

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen. What must not happen is shown by something that comes after.
const patience = 10 * time.Second

// write replaces a file in one step, so that nobody sees it half written.
func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

// watch watches what files returns and counts changes on a channel.
func watch(t *testing.T, files func() []string) <-chan struct{} {
	t.Helper()
	changes := make(chan struct{}, 100)
	w, err := Watch(files, func() { changes <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return changes
}

func wait(t *testing.T, changes <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-changes:
	case <-time.After(patience):
		t.Fatalf("not seen: %s", what)
	}
}

func TestWatchSeesChanges(t *testing.T) {
	dir := t.TempDir()
	main, part := filepath.Join(dir, "main.yml"), filepath.Join(dir, "configs", "a.yml")
	write(t, main, "1")
	changes := watch(t, func() []string { return []string{main, filepath.Join(dir, "configs", "*.yml")} })

	write(t, main, "2")
	wait(t, changes, "a file replaced by another")

	f, err := os.OpenFile(main, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("3"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, changes, "a file written in place")

	if err := os.Mkdir(filepath.Dir(part), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, part, "1")
	wait(t, changes, "a new file that a pattern matches, in a new folder")
	write(t, part, "2")
	wait(t, changes, "a file that a pattern matches, written")

	if err := os.Remove(main); err != nil {
		t.Fatal(err)
	}
	wait(t, changes, "a file removed")
}

// TestWatchSeesConfigMap does what a kubelet does with a ConfigMap: the file that is watched never changes, nor its link;
// a link beside it is replaced.
func TestWatchSeesConfigMap(t *testing.T) {
	dir := t.TempDir()
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name+".new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, generation := range []string{"..1", "..2"} {
		if err := os.Mkdir(filepath.Join(dir, generation), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, generation, "gateway.yml"), generation)
	}
	link("..1", "..data")
	link("..data/gateway.yml", "gateway.yml")
	changes := watch(t, func() []string { return []string{filepath.Join(dir, "gateway.yml")} })

	link("..2", "..data")
	wait(t, changes, "a link replaced")
	write(t, filepath.Join(dir, "..2", "gateway.yml"), "3")
	wait(t, changes, "the file that the new link leads to, written")
}

// TestWatchIgnoresWhatIsNoChange holds that only contents count: had the first writes been taken for a change, there would be
// two in the end.
func TestWatchIgnoresWhatIsNoChange(t *testing.T) {
	dir := t.TempDir()
	main := filepath.Join(dir, "main.yml")
	write(t, main, "1")
	asked := make(chan struct{}, 100)
	changes := watch(t, func() []string {
		asked <- struct{}{}
		return []string{main}
	})
	wait(t, asked, "the first question for the files")
	write(t, filepath.Join(dir, "other.log"), "x")
	write(t, main, "1")
	wait(t, asked, "the look at the files after a change in the folder")
	write(t, main, "2")
	wait(t, changes, "the change of the contents")
	if len(changes) != 0 {
		t.Error("a change without a difference was reported")
	}
}

// TestWatchFollowsNewFiles holds that files that a reload has found are watched from then on, and that finding them is no
// change by itself.
func TestWatchFollowsNewFiles(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	main, part := filepath.Join(dir, "main.yml"), filepath.Join(other, "part.yml")
	write(t, main, "1")
	write(t, part, "1")
	files := make(chan []string, 1)
	files <- []string{main}
	changes := make(chan struct{}, 100)
	w, err := Watch(func() []string {
		names := <-files
		files <- names
		return names
	}, func() {
		<-files
		files <- []string{main, part}
		changes <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, main, "2")
	wait(t, changes, "the change that brings the new file")
	// The watcher looks at the new file only after the call above has returned, so it is changed until that is seen.
	deadline := time.After(patience)
	for i := 0; len(changes) == 0; i++ {
		write(t, part, "x"+string(rune('a'+i%26)))
		select {
		case <-deadline:
			t.Fatal("not seen: a change of the new file")
		case <-time.After(settleTime * 2):
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseWaitsForTheCall(t *testing.T) {
	main := filepath.Join(t.TempDir(), "main.yml")
	write(t, main, "1")
	entered, leave := make(chan struct{}), make(chan struct{})
	w, err := Watch(func() []string { return []string{main} }, func() {
		close(entered)
		<-leave
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, main, "2")
	<-entered
	closed := make(chan error)
	go func() { closed <- w.Close() }()
	select {
	case <-closed:
		t.Error("Close returned while the call was running")
	case <-time.After(20 * time.Millisecond):
	}
	close(leave)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestChecksum(t *testing.T) {
	dir := t.TempDir()
	a, b, l := filepath.Join(dir, "a.yml"), filepath.Join(dir, "b.yml"), filepath.Join(dir, "l")
	write(t, a, "x")
	if err := os.Symlink(a, l); err != nil {
		t.Fatal(err)
	}
	files := []string{a, b, l, filepath.Join(dir, "*.yml"), dir}
	last := Checksum(files)
	f := func(what string, different bool, change func() error) {
		t.Helper()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		now := Checksum(files)
		if (now != last) != different {
			t.Errorf("%s: a difference is %v", what, now != last)
		}
		last = now
	}
	f("nothing", false, func() error { return nil })
	f("the same written again", false, func() error { return os.WriteFile(a, []byte("x"), 0o600) })
	f("the order of the files", false, func() error { slices.Reverse(files); return nil })
	f("contents", true, func() error { return os.WriteFile(a, []byte("y"), 0o600) })
	f("a missing file appears, empty", true, func() error { return os.WriteFile(b, nil, 0o600) })
	f("a link leads to another file", true, func() error {
		if err := os.Remove(l); err != nil {
			return err
		}
		return os.Symlink(b, l)
	})
	f("a file that only the pattern matches", true, func() error { return os.WriteFile(filepath.Join(dir, "c.yml"), nil, 0o600) })
	f("a file removed", true, func() error { return os.Remove(a) })
}
