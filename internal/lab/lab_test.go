package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

func TestNetnsLab_leaves_nothing(t *testing.T) {
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	node, err := l.Node("n")
	if err != nil {
		t.Fatal(err)
	}
	sleep := node.Command(context.Background(), "sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := sleep.Wait(); err == nil {
		t.Error("process inside the lab outlived it")
	}
	left, _ := filepath.Glob("/run/netns/nvt-" + l.ID + "-*")
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(l.Dir); err == nil {
		t.Errorf("left: %s", l.Dir)
	}
}

// envAbandon tells a copy of the test binary to make a lab, say its id and directory, and wait for its death.
const envAbandon = "NVT_LAB_ABANDON"

func TestMain(m *testing.M) {
	if os.Getenv(envAbandon) != "" {
		fmt.Fprintln(os.Stderr, abandon())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func abandon() error {
	l, err := lab.New(lab.Options{})
	if err != nil {
		return err
	}
	node, err := l.Node("n")
	if err != nil {
		return err
	}
	sleep := node.Command(context.Background(), "sleep", "1000")
	if err := sleep.Start(); err != nil {
		return err
	}
	_, pid, err := escaped(node)
	if err != nil {
		return err
	}
	fmt.Println("lab", l.ID, l.Dir, sleep.Process.Pid, pid)
	select {}
}

func TestNetnsLab_is_cleaned_up_after_a_kill(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envAbandon+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var id, dir string
	var inside, outside int
	_, err = fmt.Fscanf(out, "lab %s %s %d %d", &id, &dir, &inside, &outside)
	if kerr := cmd.Process.Kill(); err != nil || kerr != nil {
		t.Fatal(err, kerr)
	}
	_ = cmd.Wait()
	left := []string{"?"}
	for end := time.Now().Add(10 * time.Second); len(left) > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left, _ = filepath.Glob("/run/netns/nvt-" + id + "-*")
		if _, err := os.Stat(dir); err == nil {
			left = append(left, dir)
		}
		for _, pid := range []int{inside, outside} {
			if err := syscall.Kill(pid, 0); err == nil {
				left = append(left, fmt.Sprintf("process %d", pid))
			}
		}
		left = append(left, cgroups(id)...)
	}
	if len(left) > 0 {
		t.Errorf("left: %v", left)
		_ = lab.Sweep(id)
		_ = os.RemoveAll(dir)
	}
}

func TestNetnsSweep_takes_one_lab_only(t *testing.T) {
	mine, other := lab.ForTest(t), lab.ForTest(t)
	for _, l := range []*lab.Lab{mine, other} {
		if _, err := l.Namespace("x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := lab.Sweep(mine.ID); err != nil {
		t.Fatal(err)
	}
	for l, want := range map[*lab.Lab]bool{mine: false, other: true} {
		if _, err := os.Stat("/run/netns/nvt-" + l.ID + "-x"); (err == nil) != want {
			t.Errorf("%s: %v", l.ID, err)
		}
	}
	for _, bad := range []string{"", "*", "a-b", "../x"} {
		if lab.Sweep(bad) == nil {
			t.Errorf("swept %q", bad)
		}
	}
}

func TestNetnsLab_many_pods(t *testing.T) {
	l := lab.ForTest(t)
	begin := time.Now()
	var wg sync.WaitGroup
	errs := make(chan error, 250)
	for i := range 250 {
		wg.Go(func() {
			_, err := l.Namespace(fmt.Sprintf("p%d", i))
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("250 namespaces in %v", time.Since(begin))
}

func TestNetnsNode_is_a_machine_of_its_own(t *testing.T) {
	s := lab.NewSimple(t, lab.SimpleOptions{})
	ctx := context.Background()
	pod := s.Pod(t, "late") // made after the node: must propagate
	run := func(script string) string {
		t.Helper()
		out, err := s.Node.Command(ctx, "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := run("ls /sys/class/net | tr '\n' ' '"); got != "eth0 lo" {
		t.Errorf("/sys/class/net: %q", got)
	}
	if got := run("ls -A /run | tr '\n' ' '; stat -f -c %T /run /var/lib/cni"); got != "lock netns tmpfs\ntmpfs" {
		t.Errorf("/run: %q", got)
	}
	if got := run("ip -o addr show dev eth0"); !strings.Contains(got, "dynamic") {
		t.Errorf("address is not dynamic: %s", got)
	}
	if got := run("nsenter --net=" + pod.Path + " ls /proc/sys/net/ipv4/conf | grep -c eth0; true"); got != "0" {
		t.Errorf("pod namespace not visible inside the node: %s", got)
	}
	if err := s.Node.SetBootID("0000"); err != nil {
		t.Fatal(err)
	}
	if got := run("cat /proc/sys/kernel/random/boot_id"); got != "0000" {
		t.Errorf("boot id: %q", got)
	}
	if err := s.Node.SetBootID(""); err != nil {
		t.Fatal(err)
	}
	if got := run("cat /proc/sys/kernel/random/boot_id"); len(got) != 36 {
		t.Errorf("boot id: %q", got)
	}
	run("mkdir -p /run/native-vmss && echo hello >/run/native-vmss/f")
	if b, err := os.ReadFile(s.Node.Path("/run/native-vmss/f")); err != nil || string(b) != "hello\n" {
		t.Errorf("read through Path: %q, %v", b, err)
	}
	if _, err := os.Stat("/run/native-vmss/f"); err == nil {
		t.Error("a node's file is visible on the host")
	}
	if err := s.Node.Do(func() error { _, err := os.Stat("/run/native-vmss/f"); return err }); err != nil {
		t.Errorf("Do sees other files: %v", err)
	}
	_, err := s.Node.DialTCP(ctx, netip.Addr{}, netip.AddrPortFrom(lab.SimpleInternet, 9), time.Second)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("internet: %v", err)
	}
}

const fakePlugin = `#!/bin/sh
cat >/dev/null
echo "$CNI_COMMAND $CNI_NETNS ${CNI_ARGS-unset}" >>/run/calls
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.1.0","ips":[{"address":"10.20.0.10/32"}]}' ;;
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
STATUS) echo '{"cniVersion":"1.1.0","code":50,"msg":"not ready"}'; exit 1 ;;
esac
`

func TestNetnsRuntime_runs_plugins_on_the_node(t *testing.T) {
	s := lab.NewSimple(t, lab.SimpleOptions{})
	ctx := context.Background()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "fake"), []byte(fakePlugin), 0o755); err != nil {
		t.Fatal(err)
	}
	rt, err := s.Node.Runtime([]byte(`{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"fake"}]}`), bin)
	if err != nil {
		t.Fatal(err)
	}
	pod := lab.Pod{ID: "c1", Netns: s.Pod(t, "p1").Path, Namespace: "team-a", Name: "web-0"}
	res, err := rt.Add(ctx, pod)
	if err != nil {
		t.Fatal(err)
	}
	if res.Version() != "1.1.0" {
		t.Errorf("result: %v", res)
	}
	for _, err := range []error{rt.Check(ctx, pod), rt.GC(ctx, pod), rt.Del(ctx, pod)} {
		if err != nil {
			t.Error(err)
		}
	}
	if err := rt.Status(ctx); lab.ErrorCode(err) != 50 {
		t.Errorf("status: %v", err)
	}
	o := s.Node.RunPlugin(ctx, filepath.Join(bin, "fake"), lab.Call{Command: "ADD", Without: []string{"CNI_ARGS"}})
	if !o.OK() {
		t.Errorf("plugin: %+v", o)
	}
	calls, err := os.ReadFile(s.Node.Path("/run/calls"))
	if err != nil || !strings.Contains(string(calls), "K8S_POD_NAME=web-0") || !strings.Contains(string(calls), "unset") {
		t.Errorf("calls: %s, %v", calls, err)
	}
}
