package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	demoDeadline = 3 * time.Minute
	// soakVariable is set where tests may take long.
	soakVariable = "NVT_SOAK"
	// markVariable is inherited by all that a demo starts.
	markVariable = "NVT_DEMO_TEST"
)

// process is the demo as `make demo` starts it.
type process struct {
	*exec.Cmd
	mark string // in the environment of all that it starts
	temp string // its TMPDIR
	out  bytes.Buffer
}

// program is the built demo.
var program string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nvt-demo-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "demo")
	if out, err := exec.CommandContext(context.Background(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

func start(t *testing.T, fault string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), demoDeadline)
	t.Cleanup(cancel)
	p := &process{
		Cmd: exec.CommandContext(ctx, program), temp: t.TempDir(),
		mark: fmt.Sprintf("%s=%d-%d", markVariable, os.Getpid(), time.Now().UnixNano()),
	}
	p.Dir = "../../.."
	p.Env = append(os.Environ(), "FAULT="+fault, p.mark, "TMPDIR="+p.temp)
	p.Stderr = os.Stderr
	return p
}

// finish waits for the end and returns the exit code.
func (p *process) finish(t *testing.T, wait func() error) int {
	t.Helper()
	var exit *exec.ExitError
	if err := wait(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v\n%s", err, &p.out)
	}
	return p.ProcessState.ExitCode()
}

// mustBeGone wants no process, namespace or file of the demo within a time.
func (p *process) mustBeGone(t *testing.T, within time.Duration) {
	t.Helper()
	id := regexp.MustCompile(`lab (\w+)`).FindStringSubmatch(p.out.String())
	if id == nil {
		t.Fatalf("no id of a lab in:\n%s", &p.out)
	}
	end := time.Now().Add(within)
	left := p.left(t, id[1])
	for len(left) > 0 && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
		left = p.left(t, id[1])
	}
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func (p *process) left(t *testing.T, labID string) (left []string) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/nvt-" + labID + "-*", filepath.Join(p.temp, "*"), "/proc/[0-9]*/environ"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if filepath.Base(f) == "environ" && !p.started(f) {
				continue
			}
			left = append(left, f)
		}
	}
	return left
}

// started tells whether a process of that environment is of this demo.
func (p *process) started(environ string) bool {
	b, err := os.ReadFile(environ)
	return err == nil && bytes.Contains(b, []byte(p.mark))
}

func TestNetnsDemo_healthy(t *testing.T) {
	p := start(t, "")
	p.Stdout = &p.out
	if code := p.finish(t, p.Run); code != exitOK {
		t.Errorf("exit %d", code)
	}
	if !strings.Contains(p.out.String(), "\nall ") || strings.Contains(p.out.String(), "NOT OK") {
		t.Error("not all lines hold")
	}
	p.mustBeGone(t, 0)
	if t.Failed() {
		t.Log(p.out.String())
	}
}

func TestNetnsDemo_faults(t *testing.T) {
	for _, name := range faultNames() {
		t.Run(name, func(t *testing.T) {
			p := start(t, name)
			p.Stdout = &p.out
			if code := p.finish(t, p.Run); code != exitNotOK {
				t.Errorf("exit %d", code)
			}
			last := regexp.MustCompile(`(?m)^  NOT OK  (.*)$`).FindAllStringSubmatch(p.out.String(), -1)
			if len(last) != 1 || !strings.HasPrefix(last[0][1], faults[name].line+": expected ") || !strings.Contains(last[0][1], ", saw ") {
				t.Errorf("want one line NOT OK  %s: expected …, saw …; got %q", faults[name].line, last)
			}
			if want := evidence[name]; len(last) > 0 && !strings.Contains(last[0][1], want) {
				t.Errorf("no %q in %q", want, last[0][1])
			}
			p.mustBeGone(t, 0)
			if t.Failed() {
				t.Log(p.out.String())
			}
		})
	}
}

// evidence is what the line must have seen.
var evidence = map[string]string{
	"vxlan":   "VXLAN into p-node1-0 10.20.0.4 > 10.20.0.5",
	"masq":    "saw 10.20.0.4",
	"mtu":     "at most 1400",
	"noroute": "saw 0 of 20; requests get to p-node1-0, the fabric has no route on",
	"spoof":   "on the fabric",
	"leak":    "saw route left behind: unreachable 10.20.1.11 ",
}

func TestNetnsDemo_unknown_fault(t *testing.T) {
	p := start(t, "nonsense")
	p.Stdout = &p.out
	if code := p.finish(t, p.Run); code != exitUsage || !strings.Contains(p.out.String(), "vxlan") {
		t.Errorf("exit %d, %s", code, &p.out)
	}
}

// signals: what is sent, and the line after which it comes.
var signals = []struct {
	signal syscall.Signal
	at     string
	late   bool
}{
	{syscall.SIGINT, "lab ", false}, // while the cloud is built
	{syscall.SIGTERM, "ping same node", false},
	{syscall.SIGINT, "TCP same node", true},
	{syscall.SIGTERM, "The neighbour table", true},
	{syscall.SIGKILL, "ping same node", false}, // the janitor's work
}

func TestNetnsDemo_signals(t *testing.T) {
	for _, tt := range signals {
		t.Run(fmt.Sprintf("%s at %s", tt.signal, tt.at), func(t *testing.T) {
			if tt.late && os.Getenv(soakVariable) == "" {
				t.Skip("comes after most of a demo: set NVT_SOAK")
			}
			p := start(t, "")
			took := p.interrupt(t, tt.signal, tt.at)
			code := p.finish(t, p.Wait)
			if want := exitSignal + int(tt.signal); code != want && tt.signal != syscall.SIGKILL {
				t.Errorf("exit %d, want %d", code, want)
			}
			if took() > 20*time.Second {
				t.Errorf("took %s to stop", took())
			}
			p.mustBeGone(t, 10*time.Second) // nobody says when the janitor of a killed demo is through
			if t.Failed() {
				t.Log(p.out.String())
			}
		})
	}
}

// interrupt sends a signal after a line, and reads until the end of the output. took is the time since.
func (p *process) interrupt(t *testing.T, signal syscall.Signal, after string) (took func() time.Duration) {
	t.Helper()
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var at time.Time
	for lines := bufio.NewScanner(out); lines.Scan(); {
		p.out.WriteString(lines.Text() + "\n")
		if at.IsZero() && strings.Contains(lines.Text(), after) {
			at = time.Now()
			if err := p.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
		}
	}
	return func() time.Duration { return time.Since(at) }
}
