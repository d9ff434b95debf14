package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"

	"weir/internal/obs"
	"weir/queue"
)

// A Repair says what a repair of a queue did.
type Repair struct {
	Blocks   int64 `json:"blocks"`   // that were intact and were written again
	Records  int64 `json:"records"`  // in those blocks
	Damaged  int64 `json:"damaged"`  // stretches that were set aside as .bad files
	Salvaged int64 `json:"salvaged"` // records out of .bad files
}

// RepairFolder writes everything intact of a queue whose process is gone again, into files without damage, and sets damaged
// stretches aside. With salvage it also puts back what is a whole JSON object in a line of a .bad file, and removes the file:
// a record next to a bad byte comes back, one that a bad byte is in is lost, or, rarely, comes back changed. A crash in
// between leaves records twice. log hears of the damage. It returns ErrLocked if a process has the queue.
func RepairFolder(ctx context.Context, f Folder, salvage bool, log *slog.Logger) (r Repair, err error) {
	in, err := f.Lock()
	if err != nil {
		return r, err
	}
	m := NewManager(in, obs.NewMetrics(), log)
	defer func() { err = errors.Join(err, m.Close(), in.Close()) }()
	// Nothing may be refused that was taken before.
	q, err := m.Open(f.Name, Options{MaxBytes: math.MaxInt64 / 4, MaxRecord: 1 << 30})
	if err != nil {
		return r, err
	}
	consumers, err := q.Consumers(1)
	if err != nil {
		return r, err
	}
	for left := q.Stats().Depth; left > 0; left-- {
		b, err := consumers[0].Peek(ctx)
		if err != nil {
			return r, err
		}
		for record := range b.Records() {
			if err := q.PutWait(ctx, record); err != nil {
				return r, fmt.Errorf("repair queue %s: %w", f.Name, err)
			}
		}
		if err := q.Flush(ctx); err != nil {
			return r, err
		}
		r.Blocks++
		r.Records += int64(b.Count)
		if err := consumers[0].Advance(); err != nil {
			return r, err
		}
	}
	r.Damaged = q.Stats().Bad
	if salvage {
		r.Salvaged, err = salvageBad(ctx, f, q)
	}
	return r, err
}

// salvageBad puts the records that can be read in .bad files onto q.
func salvageBad(ctx context.Context, f Folder, q queue.Queue) (int64, error) {
	paths, err := f.BadFiles()
	if err != nil {
		return 0, err
	}
	n := int64(0)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return n, err
		}
		for line := range bytes.Lines(text) {
			if len(line) == 0 || line[len(line)-1] != '\n' {
				continue // cut off
			}
			line = line[:len(line)-1]
			// A header may stand before the first record of a block.
			if i := bytes.IndexByte(line, '{'); i < 0 || !json.Valid(line[i:]) {
				continue
			} else if err := q.PutWait(ctx, line[i:]); err != nil {
				return n, fmt.Errorf("salvage from %s: %w", path, err)
			}
			n++
		}
		if err := q.Flush(ctx); err != nil {
			return n, err
		}
		if err := os.Remove(path); err != nil {
			return n, err
		}
	}
	return n, nil
}
