package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of the times in /proc/PID/stat: USER_HZ, which is 100 on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// processStat is what the harness reads of /proc/PID/stat (proc_pid_stat(5)).
type processStat struct {
	parent int
	cpu    time.Duration // user and system time of all threads
	rss    int64         // bytes
}

// parseStat parses /proc/PID/stat. The second field, the command in parentheses, may hold anything, parentheses too.
func parseStat(stat string) (processStat, error) {
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return processStat{}, fmt.Errorf("stat %q: no command", stat)
	}
	fields := strings.Fields(stat[end+1:])
	// Counted from 1 in the manual, and the third field is the first here.
	number := func(i int) (int64, error) {
		if i-3 >= len(fields) {
			return 0, fmt.Errorf("stat %q: no field %d", stat, i)
		}
		n, err := strconv.ParseInt(fields[i-3], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("stat field %d: %w", i, err)
		}
		return n, nil
	}
	var n [4]int64
	for i, field := range []int{4, 14, 15, 24} { // ppid, utime, stime, rss
		var err error
		if n[i], err = number(field); err != nil {
			return processStat{}, err
		}
	}
	return processStat{
		parent: int(n[0]),
		cpu:    time.Duration(n[1]+n[2]) * clockTick,
		rss:    n[3] * int64(os.Getpagesize()),
	}, nil
}

// usage returns CPU time and resident memory of a process and all that descend from it.
func usage(root int) (cpu time.Duration, rss int64, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, 0, err
	}
	all := map[int]processStat{}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		stat, err := parseStat(string(text))
		if err != nil {
			return 0, 0, err
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return 0, 0, err
		}
		all[pid] = stat
	}
	if _, ok := all[root]; !ok {
		return 0, 0, fmt.Errorf("no process %d", root)
	}
	cpu, rss = sumTree(all, root)
	return cpu, rss, nil
}

func sumTree(all map[int]processStat, root int) (cpu time.Duration, rss int64) {
	cpu, rss = all[root].cpu, all[root].rss
	for pid, stat := range all {
		if stat.parent == root && pid != root {
			c, r := sumTree(all, pid)
			cpu, rss = cpu+c, rss+r
		}
	}
	return cpu, rss
}
