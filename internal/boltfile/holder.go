package boltfile

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// nobodyKnown is said when the holder is gone, or lives in a pid namespace that /proc doesn't show.
const nobodyKnown = "unknown"

// ticksPerSecond is USER_HZ, the unit of times in /proc/<pid>/stat: 100 on every architecture that Go knows (proc(5)).
const ticksPerSecond = 100

// lockLine is one lock as /proc/locks and fdinfo print it:
//
//	1: FLOCK  ADVISORY  WRITE 713 fe:01:4194321 0 EOF
//	2: OFDLCK ADVISORY  WRITE -1 00:1b:97 77 77
type lockLine struct {
	kind       string
	pid        int
	major      uint32
	minor      uint32
	inode      uint64
	start, end string
}

// parseLockLine reads one line; waiters ("1: -> FLOCK …") and lines of another form are not ok.
func parseLockLine(line string) (l lockLine, ok bool) {
	f := strings.Fields(line)
	if len(f) != 8 || !strings.HasSuffix(f[0], ":") {
		return lockLine{}, false
	}
	l = lockLine{kind: f[1], start: f[6], end: f[7]}
	if _, err := fmt.Sscanf(f[5], "%x:%x:%d", &l.major, &l.minor, &l.inode); err != nil {
		return lockLine{}, false
	}
	pid, err := strconv.Atoi(f[4])
	if err != nil {
		return lockLine{}, false
	}
	l.pid = pid
	return l, true
}

// on reports whether the lock is on the file. The device is not compared where the kernel shows another one than stat does
// (btrfs, overlayfs): the inode and the kind of lock have to do then.
func (l lockLine) on(st *syscall.Stat_t) bool {
	return l.inode == st.Ino
}

func (l lockLine) sameDevice(st *syscall.Stat_t) bool {
	return l.major == unix.Major(st.Dev) && l.minor == unix.Minor(st.Dev)
}

// covers reports whether a byte range holds the offset.
func (l lockLine) covers(offset int64) bool {
	start, err := strconv.ParseInt(l.start, 10, 64)
	if err != nil || offset < start {
		return false
	}
	end, err := strconv.ParseInt(l.end, 10, 64)
	return err != nil || offset <= end // "EOF" has no number
}

// flockHolder names who has the flock of f, from /proc/locks.
func flockHolder(f *os.File) string {
	st, ok := statOf(f)
	if !ok {
		return nobodyKnown
	}
	pid := 0
	for try := 0; try < lookTries && pid == 0; try++ {
		pid = flockPID(st)
	}
	return describe(pid)
}

// lookTries is how often /proc/locks is read: it comes in pieces, and a lock can slip from one to the other when those before it
// are given back.
const lookTries = 5

func flockPID(st *syscall.Stat_t) int {
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	found := 0
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		l, ok := parseLockLine(sc.Text())
		if !ok || l.kind != "FLOCK" || !l.on(st) {
			continue
		}
		if l.sameDevice(st) {
			return l.pid
		}
		found = l.pid
	}
	return found
}

// rangeHolder names who has the OFD lock that covers the offset. /proc/locks shows pid -1 for those, so the descriptors of all
// processes are looked through; this is done when a waiter has given up, never before.
func rangeHolder(f *os.File, offset int64) string {
	st, ok := statOf(f)
	if !ok {
		return nobodyKnown
	}
	found := 0
	infos, _ := filepath.Glob("/proc/[0-9]*/fdinfo/[0-9]*")
	for _, info := range infos {
		b, err := os.ReadFile(info)
		if err != nil || !bytes.Contains(b, []byte("OFDLCK")) {
			continue
		}
		for line := range strings.Lines(string(b)) {
			l, ok := parseLockLine(strings.TrimPrefix(strings.TrimSpace(line), "lock:"))
			if ok && l.kind == "OFDLCK" && l.on(st) && l.covers(offset) {
				pid, _ := strconv.Atoi(strings.Split(info, "/")[2])
				if l.sameDevice(st) {
					return describe(pid)
				}
				found = pid
			}
		}
	}
	return describe(found)
}

func statOf(f *os.File) (*syscall.Stat_t, bool) {
	info, err := f.Stat()
	if err != nil {
		return nil, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return st, ok
}

// describe names a process: "vmssctl (pid 4711, since 2026-11-29T10:00:00Z)".
func describe(pid int) string {
	if pid <= 0 {
		return nobodyKnown
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("%s (pid %d)", nobodyKnown, pid)
	}
	name := command(pid, strings.TrimSpace(string(comm)))
	since, ok := startTime(pid)
	if !ok {
		return fmt.Sprintf("%s (pid %d)", name, pid)
	}
	return fmt.Sprintf("%s (pid %d, since %s)", name, pid, since.UTC().Format(time.RFC3339))
}

// command is the program's base name with its first argument ("vmssctl ipam"), or comm where the kernel shows no more.
func command(pid int, comm string) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return comm
	}
	args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
	if args[0] == "" {
		return comm
	}
	name := filepath.Base(args[0])
	if len(args) > 1 && len(args[1]) <= 32 {
		name += " " + args[1]
	}
	return name
}

// startTime is the time of boot (/proc/stat btime) plus the process's start in ticks after it (stat field 22).
func startTime(pid int) (time.Time, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return time.Time{}, false
	}
	// The command may hold spaces and brackets; the fields after it can't.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const startField = 22 - 3 // the first field after the command is number 3
	if len(f) <= startField {
		return time.Time{}, false
	}
	ticks, err := strconv.ParseInt(f[startField], 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	booted, ok := bootTime()
	return booted.Add(time.Duration(ticks) * time.Second / ticksPerSecond), ok
}

func bootTime() (time.Time, bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}, false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "btime "); ok {
			s, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return time.Unix(s, 0), err == nil
		}
	}
	return time.Time{}, false
}
