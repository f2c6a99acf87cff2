package netns

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	// Rounds of each of the three kinds, 300 in all.
	killedRounds = 100
	killedLeast  = 10 // kills that met a living process, of each kind
	killedLatest = 400 * time.Millisecond
	// Every so often DEL is left out, and GC finds what is left.
	killedUndeleted = 10
)

// killed is one node on which ADDs are killed, with a pod that lives through it all.
type killed struct {
	*stage
	rnd    *rand.Rand
	conf   []byte        // stdin of ADD and DEL
	binary string        // the main plugin
	target string        // who is killed: main, ipam, both, or main and both in turn
	dir    string        // where the IPAM child notes its pid
	latest time.Duration // when a kill comes at the latest, so that about half of them meet a living process
	alive  netip.Addr
	links  string // those of the node while only the live pod has one
	kills  int
}

// newKilled has a live pod and knows about how long an ADD takes.
func newKilled(t *testing.T, seed, n uint64, foreign bool) *killed {
	t.Helper()
	k := &killed{stage: newStage(t, poolOf(5)), rnd: rand.New(rand.NewPCG(seed, n)), dir: t.TempDir()}
	k.binary = program(t, "native-vmss")
	k.ipam["cooldown"] = "1ms"
	k.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1") // addresses that come some time after their link would be news
	k.conf = k.stage.conf()
	if foreign {
		k.binary = peer(t, "ptp")
		ipam := vmss()
		ipam["cooldown"] = "1ms"
		var err error
		k.conf, err = json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": network, "type": "ptp", "ipam": ipam})
		if err != nil {
			t.Fatal(err)
		}
		k.installChild(program(t, "ipam-vmss"))
		k.path = k.dir + ":" + k.path
	}
	for _, id := range []string{"settle", "alive"} {
		space := k.Pod(t, id)
		begin := time.Now()
		o := k.Node.RunPlugin(chainContext(t), k.binary, k.callOf("ADD", id, space))
		k.latest = time.Since(begin)
		if !o.OK() {
			t.Fatalf("ADD: exit %d %s", o.Exit, o.Stdout)
		}
		if id == "settle" {
			k.mustDel(id, space)
		}
	}
	held := k.held()
	if len(held) != 1 {
		t.Fatalf("leased %v", held)
	}
	k.alive, k.links = held[0], k.allLinks()
	return k
}

// installChild puts a shell in front of ipam-vmss that notes its pid and becomes it.
func (k *killed) installChild(program string) {
	k.t.Helper()
	script := "#!/bin/sh\nnote=" + k.dir + "/$CNI_CONTAINERID\n" +
		"[ $CNI_COMMAND != ADD ] || { echo $$ >$note.new; mv $note.new $note; }\nexec " + program + "\n"
	if err := os.WriteFile(filepath.Join(k.dir, "ipam-vmss"), []byte(script), 0o700); err != nil {
		k.t.Fatal(err)
	}
}

func (k *killed) callOf(command, id string, pod *lab.Namespace) lab.Call {
	return k.call(command, id, pod, withStdin(k.conf))
}

func (k *killed) mustDel(id string, pod *lab.Namespace) {
	k.t.Helper()
	if o := k.Node.RunPlugin(chainContext(k.t), k.binary, k.callOf("DEL", id, pod)); !o.OK() {
		k.t.Errorf("DEL %s: exit %d %s %s", id, o.Exit, o.Stdout, o.Stderr)
	}
}

// allLinks are the node's links and routes, and the addresses noted for pods of ptp.
func (k *killed) allLinks() string {
	return k.sh("ip -o link | cut -d: -f2 | sort; ip route | sort; ip route show table 28299 2>/dev/null || true")
}

// awaitChild waits until the IPAM child of an ADD has noted its pid; it lives for a few milliseconds only.
func (k *killed) awaitChild(id string) {
	for end := time.Now().Add(killedLatest); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(k.dir, id)); err == nil {
			return
		}
	}
}

// killChild kills the IPAM child of an ADD and tells whether it was there. It is named by a descriptor, since numbers are used
// again.
func (k *killed) killChild(id string) bool {
	text, err := os.ReadFile(filepath.Join(k.dir, id))
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || !strings.Contains(string(env), "CNI_CONTAINERID="+id+"\x00") {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// addAndKill starts an ADD and kills at a random time. The outcome is nil when somebody was killed.
func (k *killed) addAndKill(id string, pod *lab.Namespace, target string) *lab.Outcome {
	cmd, wait := k.Node.StartPlugin(context.Background(), k.binary, k.callOf("ADD", id, pod))
	anyTime := k.rnd.IntN(4) == 0
	latest := killedLatest
	if !anyTime { // most of 400 ms would be after the end of an ADD, and most of an ADD is before or after its child
		latest = k.latest
		if target == "ipam" {
			k.awaitChild(id)
		}
	}
	time.Sleep(time.Duration(k.rnd.Int64N(int64(latest))))
	hit := false
	if target != "ipam" && cmd.Process != nil {
		_ = cmd.Process.Kill()
	}
	if target != "main" {
		hit = k.killChild(id)
	}
	o := wait()
	hit = hit || o.Err != nil
	switch { // other tests come and go beside this one
	case anyTime:
	case hit:
		k.latest = min(k.latest*5/4, killedLatest)
	default:
		k.latest = max(k.latest*4/5, time.Millisecond)
	}
	if !hit {
		return &o
	}
	k.kills++
	return nil
}

// round is one ADD that is killed, and what a runtime does then.
func (k *killed) round(i int) {
	id := fmt.Sprintf("c%d", i)
	pod := k.Pod(k.t, id)
	target := k.target
	if target == "" {
		target = []string{"main", "both"}[i%2]
	}
	if o := k.addAndKill(id, pod, target); o != nil && o.Exit != 0 {
		k.t.Errorf("%s: an ADD that nobody killed failed while one of five addresses is in use: %s", id, o.Stdout)
	}
	deleted := pod
	if k.rnd.IntN(2) == 0 || i%killedUndeleted == killedUndeleted-1 {
		if err := pod.Close(); err != nil {
			k.t.Fatal(err)
		}
		deleted = nil
	}
	if i%killedUndeleted == killedUndeleted-1 {
		k.gc("alive").ok()
	} else {
		k.mustDel(id, deleted)
	}
	if held := k.held(); !slices.Equal(held, []netip.Addr{k.alive}) {
		k.t.Errorf("round %d (%s killed): leased %v, want that of the live pod, %s", i, target, held, k.alive)
	}
	// The kernel takes the links of a namespace away some time after its end.
	if !pathEventually(patience, func() bool { return k.allLinks() == k.links }) {
		k.t.Errorf("round %d (%s killed): links and routes\n%s\nwere\n%s", i, target, k.allLinks(), k.links)
	}
	if deleted != nil {
		k.podEmpty(pod, fmt.Sprintf("round %d (%s killed)", i, target))
		if err := pod.Close(); err != nil {
			k.t.Fatal(err)
		}
	}
}

// BR-27: killed in the middle of an ADD.
func TestNetnsBR27_killed_ADD(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("NVT_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d (NVT_SEED plays it again)", seed)
	kinds := []struct {
		name, target string
		foreign      bool
	}{
		{"native-vmss_is_killed", "main", false},
		{"ipam-vmss_is_killed_under_ptp", "ipam", true},
		{"ptp_is_killed_alone_or_with_ipam-vmss", "", true},
	}
	for n, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			k := newKilled(t, seed, uint64(n), kind.foreign)
			k.target = kind.target
			before, files := k.snapshot(), k.sh("ls -A "+stateDir)
			for i := 0; i < killedRounds && !t.Failed(); i++ {
				k.round(i)
			}
			k.consistent()
			if now := k.sh("ls -A " + stateDir); now != files {
				t.Errorf("files pile up: %s, were %s", now, files)
			}
			k.unchanged(before)
			t.Logf("%d of %d killed", k.kills, killedRounds)
			if k.kills < killedLeast {
				t.Errorf("%d of %d ADDs were killed: the test proves little", k.kills, killedRounds)
			}
			// All of the pool can be had.
			var got []string
			for i := range 4 {
				id := fmt.Sprintf("last%d", i)
				pod := k.Pod(t, id)
				if o := k.Node.RunPlugin(chainContext(t), k.binary, k.callOf("ADD", id, pod)); !o.OK() {
					t.Errorf("ADD %d of 4 afterwards: %s", i+1, o.Stdout)
				}
				got = append(got, id)
				defer k.mustDel(id, pod)
			}
			if held := k.held(); len(held) != 1+len(got) {
				t.Errorf("leased %v", held)
			}
		})
	}
}
