package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"weir/elastic/bulk"
	"weir/internal/app"
	"weir/internal/obs"
	"weir/queue"
	"weir/queue/disk"
)

type queueCmd struct {
	Ls     queueLsCmd     `cmd:"" help:"List the queues on disk, those of running gateways included."`
	Stat   queueStatCmd   `cmd:"" help:"Read a queue and count what it holds."`
	Peek   queuePeekCmd   `cmd:"" help:"Print the oldest records of a queue. They stay in it."`
	Export queueExportCmd `cmd:"" help:"Print all records of a queue, one a line. They stay in it."`
	Import queueImportCmd `cmd:"" help:"Put lines, or the actions of a bulk request, into a queue. A running gateway takes them over within a minute."`
	Repair queueRepairCmd `cmd:"" help:"Write what is intact of a queue again and set damage aside. Its gateway must have ended."`
}

// dataPath says where queues are.
type dataPath struct {
	files
	Data string `placeholder:"FOLDER" help:"Folder of the queues. Default: path.data of the configuration."`
}

// config returns the configuration with the folder. Without --data it must be a good one.
func (d dataPath) config(e env) (app.Config, error) {
	if d.Data != "" && len(d.Config) == 0 {
		c := app.DefaultConfig()
		c.Path.Data = d.Data
		return c, nil
	}
	plan, err := d.load(e)
	if err != nil {
		return app.Config{}, err
	}
	if d.Data != "" {
		plan.Config.Path.Data = d.Data
	}
	return plan.Config, nil
}

// named picks a queue out of those on disk.
type named struct {
	dataPath
	Name     string `arg:"" help:"Name of the queue."`
	Instance *int   `placeholder:"N" help:"Number of the instance folder. Default: all that have the queue."`
}

func (n named) folders(e env) ([]disk.Folder, error) {
	c, err := n.config(e)
	if err != nil {
		return nil, err
	}
	all, err := disk.Folders(c.Path.Data)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(f disk.Folder) bool {
		return f.Name != n.Name || n.Instance != nil && f.Instance != *n.Instance
	})
	if len(all) == 0 {
		return nil, fmt.Errorf("no queue %q under %s; `weir queue ls` lists them", n.Name, c.Path.Data)
	}
	return all, nil
}

// A row is a queue of an instance as ls and stat show it.
type row struct {
	Queue    string `json:"queue"`
	Instance int    `json:"instance"`
	InUse    bool   `json:"in_use"`
	Path     string `json:"path"`
	disk.Summary
}

type output struct {
	Format string `enum:"text,json" default:"text" help:"text, or json with one object a line."`
}

// print prints a row for each folder.
func (o output) print(e env, folders []disk.Folder) error {
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	if o.Format == "text" {
		fmt.Fprintln(w, "QUEUE\tINSTANCE\tIN USE\tBLOCKS\tRECORDS\tBYTES\tDAMAGED\tBAD FILES\tUNREADABLE\tOLDEST")
	}
	for _, f := range folders {
		used, err := f.InUse()
		if err != nil {
			return err
		}
		sum, err := f.Summary()
		if err != nil {
			return err
		}
		r := row{f.Name, f.Instance, used, f.Path(), sum}
		if o.Format == "json" {
			line, err := json.Marshal(r)
			if err != nil {
				return err
			}
			fmt.Fprintf(e.stdout, "%s\n", line)
			continue
		}
		oldest := "-"
		if !sum.Oldest.IsZero() {
			oldest = sum.Oldest.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%d\t%t\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n",
			r.Queue, r.Instance, r.InUse, sum.Blocks, sum.Records, sum.Bytes, sum.Damaged, sum.BadFiles, sum.Unreadable, oldest)
	}
	return w.Flush()
}

type queueLsCmd struct {
	dataPath
	output
}

// Run lists all queues.
func (c *queueLsCmd) Run(e env) error {
	config, err := c.config(e)
	if err != nil {
		return err
	}
	all, err := disk.Folders(config.Path.Data)
	if err != nil {
		return err
	}
	return c.print(e, all)
}

type queueStatCmd struct {
	named
	output
}

// Run counts what a queue holds.
func (c *queueStatCmd) Run(e env) error {
	folders, err := c.folders(e)
	if err != nil {
		return err
	}
	return c.print(e, folders)
}

type queuePeekCmd struct {
	named
	N int `short:"n" default:"10" help:"How many records."`
}

// Run prints the oldest records.
func (c *queuePeekCmd) Run(e env) error {
	folders, err := c.folders(e)
	if err != nil {
		return err
	}
	return printRecords(e.stdout, folders, c.N)
}

type queueExportCmd struct{ named }

// Run prints all records.
func (c *queueExportCmd) Run(e env) error {
	folders, err := c.folders(e)
	if err != nil {
		return err
	}
	return printRecords(e.stdout, folders, -1)
}

// printRecords prints up to most records, all if that is negative.
func printRecords(out io.Writer, folders []disk.Folder, most int) error {
	w := bufio.NewWriter(out)
	left := int64(0)
	for _, f := range folders {
		if most == 0 {
			break
		}
		n, err := f.Walk(func(b queue.Block) bool {
			for r := range b.Records() {
				if most == 0 {
					break
				}
				most--
				_, _ = w.Write(r) // Flush tells of an error
				_ = w.WriteByte('\n')
			}
			return most != 0
		})
		if err != nil {
			return errors.Join(fmt.Errorf("read queue %s: %w", f.Name, err), w.Flush())
		}
		left += n
	}
	if err := w.Flush(); err != nil || left == 0 {
		return err
	}
	return fmt.Errorf("%d damaged stretches or files were left out; `weir queue stat` counts them", left)
}

type queueImportCmd struct {
	dataPath
	Name  string   `arg:"" help:"Name of the queue."`
	File  *os.File `arg:"" optional:"" help:"File to read. Default: the standard input."`
	Bulk  bool     `help:"The input is the body of a bulk request, for the processor bulk_indexing. Actions that store a document without an id get one."`
	Index string   `help:"With --bulk: the index of actions that name none."`
}

// Run puts records into a queue of an instance folder that no process has. Whoever runs a gateway over the same data path
// adopts it.
func (c *queueImportCmd) Run(e env) (err error) {
	if c.Index != "" && !c.Bulk {
		return &exitError{code: exitUsage, err: errors.New("--index goes with --bulk")}
	}
	config, err := c.config(e)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	in, err := disk.AcquireInstance(config.Path.Data)
	if err != nil {
		return err
	}
	m := disk.NewManager(in, obs.NewMetrics(), warnings(e))
	defer func() { err = errors.Join(err, m.Close(), in.Close()) }()
	q, err := m.Open(c.Name, config.Queue.Options())
	if err != nil {
		return err
	}
	input := io.Reader(os.Stdin)
	if c.File != nil {
		defer c.File.Close()
		input = c.File
	}
	records := 0
	put := func(record []byte) error {
		if len(record) == 0 {
			return nil
		}
		// A full queue stays full: nobody takes records off it here.
		err := q.Put(record)
		for errors.Is(err, queue.ErrFull) && q.Stats().OpenRecords > 0 {
			if err := q.Flush(ctx); err != nil {
				return err
			}
			err = q.Put(record)
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", records+1, err)
		}
		records++
		return nil
	}
	lines := bufio.NewReaderSize(input, 1<<20)
	if c.Bulk {
		err = eachAction(lines, []byte(c.Index), put)
	} else {
		err = eachLine(lines, func(line []byte) error {
			if len(line) > 0 && !json.Valid(line) {
				return fmt.Errorf("record %d: the line %.100q is no JSON", records+1, line)
			}
			return put(line)
		})
	}
	err = errors.Join(err, q.Flush(ctx))
	fmt.Fprintf(e.stdout, "%d records put into queue %s of instance %s\n", records, c.Name, in.Path())
	return err
}

// eachLine calls put with each line, without its end.
func eachLine(in *bufio.Reader, put func([]byte) error) error {
	for {
		line, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err // half a line is no record
		}
		if err := put(bytes.TrimRight(line, "\r\n")); err != nil {
			return err
		}
		if err != nil {
			return nil
		}
	}
}

// eachAction calls put with the record of each action of the body of a bulk request.
func eachAction(in *bufio.Reader, index []byte, put func([]byte) error) error {
	var scan bulk.Scanner
	var body, record []byte
	err := eachLine(in, func(line []byte) error {
		if len(body) == 0 && len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
		complete := len(body) > 0
		body = append(append(body, line...), '\n')
		scan.Reset(body)
		if !scan.Next() {
			if err := scan.Err(); err != nil {
				return fmt.Errorf("read the line %q: %w", line, err)
			}
			if complete {
				return fmt.Errorf("read the line %q: it makes no action", line)
			}
			return nil // its document follows
		}
		if reason := unfit(scan.Action(), index); reason != "" {
			return fmt.Errorf("the action %.100q %s", body, reason)
		}
		id := make([]byte, 15)
		_, _ = rand.Read(id) // it never fails
		record = bulk.AppendRecord(record[:0], body, scan.Action(), index, base64.RawURLEncoding.AppendEncode(nil, id))
		body = body[:0]
		return put(record)
	})
	if err == nil && len(body) > 0 {
		err = fmt.Errorf("the last action has no document: %q", body)
	}
	return err
}

// unfit returns why no cluster would take an action, or "".
func unfit(a *bulk.Action, index []byte) string {
	missing := a.Missing(index)
	switch {
	case a.Verb == bulk.Other:
		return "is none of index, create, update and delete"
	case missing == "index":
		return "names no index: give one with --index"
	case missing != "":
		return "has no " + missing
	case a.Verb != bulk.Delete && !json.Valid(a.Source):
		return "has a document that is no JSON"
	}
	return ""
}

type queueRepairCmd struct {
	named
	Salvage bool `help:"Put records that can still be read in .bad files back, and remove the files."`
}

// Run repairs a queue.
func (c *queueRepairCmd) Run(e env) error {
	folders, err := c.folders(e)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	for _, f := range folders {
		r, err := disk.RepairFolder(ctx, f, c.Salvage, warnings(e))
		if errors.Is(err, disk.ErrLocked) {
			return fmt.Errorf("queue %s of instance %d belongs to a gateway that runs: end it first, or name another --instance", f.Name, f.Instance)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "queue %s of instance %d: %d blocks with %d records are intact, %d damaged stretches set aside, %d records salvaged\n",
			f.Name, f.Instance, r.Blocks, r.Records, r.Damaged, r.Salvaged)
	}
	return nil
}

// warnings is the log of a command.
func warnings(e env) *slog.Logger {
	return slog.New(slog.NewTextHandler(e.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
