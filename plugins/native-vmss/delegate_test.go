package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

const ipamResult = `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.7/24"}],"dns":{"search":["x"]}}`

// fakeIPAM is an IPAM plugin made of shell: a body per command. It notes each call in the file "calls".
func fakeIPAM(t *testing.T, bodies map[string]string) (d *delegate, calls func() string) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$CNI_COMMAND\" >>" + dir + "/calls\n"
	script += "env >" + dir + "/env.$CNI_COMMAND\ncat >" + dir + "/stdin.$CNI_COMMAND\ncase $CNI_COMMAND in\n"
	for command, body := range bodies {
		script += command + ")\n" + body + "\n;;\n"
	}
	script += "esac\n"
	if err := os.WriteFile(filepath.Join(dir, "fake"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CNI_COMMAND", "OUTER")
	t.Setenv("TRACEPARENT", "00-1-2-01")
	d = newDelegate("fake", &skel.CmdArgs{
		ContainerID: "c1", IfName: "eth0", Path: "/nowhere:" + dir, StdinData: conf("0.4.0", `,"x-note":"whole"`),
	})
	return d, func() string {
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(text)), " ")
	}
}

func TestDelegate_Acquire(t *testing.T) {
	d, calls := fakeIPAM(t, map[string]string{"ADD": "echo '" + ipamResult + "'"})
	g, err := d.Acquire(t.Context(), node.Attachment{})
	if err != nil || g.Addr.String() != "10.1.0.7" || g.Generation != node.NoLease || g.Existing {
		t.Errorf("Acquire = %+v, %v", g, err)
	}
	if got := calls(); got != "ADD" {
		t.Errorf("calls %q", got)
	}
	// The same environment with another command, and all of stdin.
	dir := strings.TrimPrefix(d.args.Path, "/nowhere:")
	env, err := os.ReadFile(filepath.Join(dir, "env.ADD"))
	if err != nil || !strings.Contains(string(env), "CNI_COMMAND=ADD\n") || strings.Contains(string(env), "OUTER") || !strings.Contains(string(env), "TRACEPARENT=00-1-2-01\n") {
		t.Errorf("%v\n%s", err, env)
	}
	if stdin, err := os.ReadFile(filepath.Join(dir, "stdin.ADD")); err != nil || string(stdin) != string(d.args.StdinData) {
		t.Errorf("%v\n%s", err, stdin)
	}
}

// A failed ADD is followed by DEL, and its error is the plugin's, or holds its last words.
func TestDelegate_Acquire_fails(t *testing.T) {
	const cniError = `echo '{"cniVersion":"0.4.0","code":107,"msg":"full","details":"no more"}'; exit 1`
	const answer = "echo '{\"cniVersion\":\"0.4.0\","
	tests := []struct {
		name, add, del string
		code           uint
		text           []string
	}{
		{"with an error", cniError, "", 107, []string{"full; no more"}},
		{"and DEL does too", cniError, `echo '{"code":5,"msg":"disk"}'; exit 1`, 107, []string{"full; no more", "disk"}},
		{"without one", "echo last words >&2; exit 3", "", delegateFailed, []string{"fake ADD: ", "last words"}},
		{"by a signal", "kill -9 $$", "", delegateFailed, []string{"fake ADD: ", "killed"}},
		{"with rubbish", "echo rubbish", "", delegateFailed, []string{"fake ADD: "}},
		{"with nothing", "", "", delegateFailed, []string{"fake ADD: "}},
		{"with an error without code", `echo '{"code":0,"msg":"odd"}'; exit 1`, "", delegateFailed, []string{"fake ADD: ", "odd"}},
		{"with null for an address", answer + "\"ips\":[null]}'", "", delegateFailed, []string{"null"}},
		{"without address", answer + "\"ips\":[]}'", "", delegateFailed, []string{"0 addresses"}},
		{"with two", answer + "\"ips\":[{\"version\":\"4\",\"address\":\"10.1.0.7/24\"},{\"version\":\"4\",\"address\":\"10.1.0.8/24\"}]}'", "", delegateFailed, []string{"2 addresses"}},
		{"with IPv6", answer + "\"ips\":[{\"version\":\"6\",\"address\":\"fd00::7/64\"}]}'", "", delegateFailed, []string{"fd00::7 is no IPv4 address"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, calls := fakeIPAM(t, map[string]string{"ADD": tt.add, "DEL": tt.del})
			_, err := d.Acquire(t.Context(), node.Attachment{})
			var e *types.Error
			if !errors.As(err, &e) || e.Code != tt.code {
				t.Errorf("error %v, want code %d", err, tt.code)
			}
			for _, text := range tt.text {
				if !strings.Contains(fmt.Sprint(err), text) {
					t.Errorf("%q lacks %q", err, text)
				}
			}
			if got := calls(); got != "ADD DEL" {
				t.Errorf("calls %q", got)
			}
		})
	}
}

// The ADD's deadline is over, DEL still runs. It was no failure of the plugin, and the runtime may try again.
func TestDelegate_Acquire_deadline(t *testing.T) {
	d, calls := fakeIPAM(t, map[string]string{"ADD": "echo still thinking >&2; exec sleep 60"})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := d.Acquire(ctx, node.Attachment{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(fmt.Sprint(err), "fake ADD: no answer in time") {
		t.Errorf("Acquire = %v", err)
	}
	if !strings.Contains(fmt.Sprint(err), "still thinking") {
		t.Errorf("%q lacks the last words", err)
	}
	if got := calls(); got != "ADD DEL" {
		t.Errorf("calls %q", got)
	}
}

func TestDelegate_notInPath(t *testing.T) {
	for _, name := range []string{"missing", "../fake", "/bin/sh"} {
		d, calls := fakeIPAM(t, nil)
		d.plugin = name
		_, err := d.Acquire(t.Context(), node.Attachment{})
		var e *types.Error
		if !errors.As(err, &e) || e.Code != types.ErrInvalidNetworkConfig || strings.Count(err.Error(), "ipam.type") != 1 || calls() != "" {
			t.Errorf("%s: %v, calls %q", name, err, calls())
		}
	}
}

// Traffic is cut before the other plugin may give the address to the next pod.
func TestDelegate_Release(t *testing.T) {
	d, calls := fakeIPAM(t, nil)
	broken := errors.New("link is still there")
	if err := d.Release(t.Context(), node.Key{}, func(context.Context, node.Grant) error { return broken }); !errors.Is(err, broken) || calls() != "" {
		t.Errorf("Release = %v, calls %q", err, calls())
	}
	before := ""
	if err := d.Release(t.Context(), node.Key{}, func(context.Context, node.Grant) error { before = calls(); return nil }); err != nil || before != "" || calls() != "DEL" {
		t.Errorf("Release = %v, calls %q, before %q", err, calls(), before)
	}
}

func TestDelegate_Reject(t *testing.T) {
	d, calls := fakeIPAM(t, map[string]string{"DEL": `echo '{"code":5,"msg":"disk"}'; exit 1`})
	err := d.Reject(t.Context(), node.Attachment{}, node.Grant{}, routes.Use{})
	if err == nil || !strings.Contains(err.Error(), "is in use") || !strings.Contains(err.Error(), "disk") || calls() != "DEL" {
		t.Errorf("Reject = %v, calls %q", err, calls())
	}
}

func TestDelegate_otherVerbs(t *testing.T) {
	d, calls := fakeIPAM(t, map[string]string{"STATUS": `echo '{"code":51,"msg":"pods suffer"}'; exit 1`})
	if err := errors.Join(d.GC(t.Context(), nil), d.Check(t.Context(), node.Attachment{}, netip.Addr{})); err != nil {
		t.Error(err)
	}
	var e *types.Error
	if err := d.Status(t.Context()); !errors.As(err, &e) || e.Code != 51 {
		t.Errorf("Status = %v", err)
	}
	if got := calls(); got != "GC CHECK STATUS" {
		t.Errorf("calls %q", got)
	}
}

// A grandchild that keeps the pipes open holds nobody up, and endless output fills nothing.
func TestChildExec_bounds(t *testing.T) {
	d, _ := fakeIPAM(t, map[string]string{"ADD": "sleep 30 & echo '" + ipamResult + "'"})
	start := time.Now()
	if _, err := d.Acquire(t.Context(), node.Attachment{}); err != nil || time.Since(start) > 20*time.Second {
		t.Errorf("%v after %s", err, time.Since(start))
	}
	d, _ = fakeIPAM(t, map[string]string{"ADD": "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 1"})
	if _, err := d.Acquire(t.Context(), node.Attachment{}); err == nil || len(err.Error()) > 3*maxLastWords {
		t.Errorf("error of %d bytes", len(fmt.Sprint(err)))
	}
}

// A child that has something to say does its work all the same where nobody takes it: our standard error may be a full disk, or a
// pipe whose reader died.
func TestChildExec_stderr_that_nobody_takes(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	stderr := os.Stderr
	t.Cleanup(func() { os.Stderr = stderr })
	for name, to := range map[string]*os.File{"a pipe without reader": w, "a full disk": full} {
		os.Stderr = to
		d, _ := fakeIPAM(t, map[string]string{
			"ADD": "echo one >&2; sleep 0.2; echo two >&2; echo '" + ipamResult + "'", "DEL": "echo last words >&2; exit 3",
		})
		if g, err := d.Acquire(t.Context(), node.Attachment{}); err != nil || g.Addr.String() != "10.1.0.7" {
			t.Errorf("%s: Acquire = %+v, %v", name, g, err)
		}
		if err := d.run(t.Context(), "DEL"); err == nil || !strings.Contains(err.Error(), "last words") {
			t.Errorf("%s: DEL's last words are not in %v", name, err)
		}
	}
}
