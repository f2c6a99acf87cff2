package netns

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// The processes of a container die without podman: its first one (conmon cleans up), then both.
func TestNetnsPodman_killed(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(5)), "10-native-vmss.conflist")
	before := p.snapshot()
	p.run("a")
	p.kill("a", "{{.State.Pid}}")
	if !pathEventually(patience, func() bool { return len(p.held()) == 0 && p.sh("ls /run/netns") == "" }) {
		t.Errorf("conmon has not cleaned up: leased %v", p.held())
	}
	p.do("rm", "a")
	p.gone(before)

	p.run("b")
	p.kill("b", "{{.State.ConmonPid}}")
	p.kill("b", "{{.State.Pid}}")
	p.removeKilled("b")
	p.gone(before)
}

func (p *podman) kill(name, which string) {
	p.t.Helper()
	pid, err := strconv.Atoi(p.do("inspect", "--format", which, name))
	if err != nil || pid < 2 {
		p.t.Fatalf("%s of %s is %d %v", which, name, pid, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	if !pathEventually(patience, func() bool { return dead(pid) }) {
		p.t.Fatalf("%d lives on", pid)
	}
}

var zombie = regexp.MustCompile(`(?m)^State:\s+[ZX]`)

// dead: gone, or nobody has reaped it yet.
func dead(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err != nil || zombie.Match(text)
}

// removeKilled removes a container whose conmon is dead: podman 4.3 waits five seconds for conmon's word of its end, gives up,
// and removes the container when it is told again.
func (p *podman) removeKilled(name string) {
	p.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, err = p.try("rm", "--force", "--time", "0", name); err == nil {
			return
		}
	}
	p.t.Errorf("not removed: %v", err)
}

// podman never asks for DEL once the name of the namespace is gone (a crash, somebody's clean-up of /run). The lease is all that
// stays, and GC takes it.
func TestNetnsPodman_namespace_lost(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(5)), "10-native-vmss.conflist")
	before := p.snapshot()
	a, b := p.run("a"), p.run("b")
	p.kill("a", "{{.State.ConmonPid}}")
	p.kill("a", "{{.State.Pid}}")
	p.sh("umount " + a.sandbox + "; rm " + a.sandbox)
	p.removeKilled("a")
	if got := p.env("DEL", "CNI_CONTAINERID"); got == a.id {
		t.Error("podman asked for DEL, so this shows nothing")
	}
	if links := p.podLinks(); len(links) != 1 || len(p.held()) != 2 {
		t.Errorf("links %v, leased %v; want the link of b alone and the lease of a too", links, p.held())
	}
	c := p.list(podmanNetwork, "1.1.0", ours(vmss()))
	if err := c.rt.GC(chainContext(t), lab.Pod{ID: b.id}); err != nil {
		t.Errorf("GC: %v", err)
	}
	if held := p.held(); !slices.Equal(held, []netip.Addr{b.ip}) {
		t.Errorf("after GC: leased %v, want %s", held, b.ip)
	}
	p.serves(b, "after GC")
	p.rm("b")
	p.sh("rm /var/lib/cni/results/" + podmanNetwork + "-" + a.id + "-eth0") // libcni's note of a, that DEL would have removed
	p.gone(before)
}

// podman and another runtime on one node and one store. GC of the other one's network, whose list knows no container of
// podman's, takes the other's pods only; of a network that both share it takes nothing where the list says disableGC.
func TestNetnsPodman_beside_another_runtime(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(8)), "10-native-vmss.conflist")
	before := p.snapshot()
	a := p.run("a")
	other, space := p.list("net-two", "1.1.0", ours(vmss())), p.Pod(t, "p1")
	// The name in /run/netns is hidden on this node.
	pod := lab.Pod{ID: "p1", Netns: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), space.Fd()), Namespace: "team-a", Name: "web-0"}
	holds := func(when string, want ...netip.Addr) {
		t.Helper()
		if held := p.held(); !slices.Equal(held, slices.SortedFunc(slices.Values(want), netip.Addr.Compare)) {
			t.Errorf("%s: leased %v, want %v", when, held, want)
		}
	}
	gc := func(c *chain, alive ...lab.Pod) {
		t.Helper()
		if err := c.rt.GC(chainContext(t), alive...); err != nil {
			t.Errorf("GC: %v", err)
		}
	}
	ip := addrOf(t, other.add(pod))
	gc(other, pod)
	holds("all are valid", a.ip, ip)
	gc(other)
	holds("no pod of the other runtime is valid", a.ip)
	p.serves(a, "after GC of another network")

	ip = addrOf(t, other.add(pod))
	p.do("restart", "a")
	a = p.ready("a")
	p.do("run", "--rm", "--pull", "never", "--network", podmanNetwork, podmanImage, "dial", netip.AddrPortFrom(a.ip, 80).String())
	holds("after podman's own comings and goings", a.ip, ip)
	p.reaches(space, ip)
	other.del(pod)

	shared := p.list(podmanNetwork, "1.1.0", ours(vmss()))
	gc(p.chained(strings.Replace(shared.conflist, "{", `{"disableGC":true,`, 1)))
	holds("GC is off", a.ip)
	p.serves(a, "GC is off")
	gc(shared) // without disableGC the list is believed
	holds("GC is on")
	p.rm("a")
	p.gone(before)
}

// Each shipped conflist, with the distribution's plugins behind ours.
func TestNetnsPodman_shipped_conflists(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(12)), "10-native-vmss.conflist")
	for _, name := range []string{"bandwidth", "every-key", "firewall", "portmap", "portmap-bandwidth", "sbr", "tuning"} {
		p.named(name, shippedText(t, name+".conflist"))
	}
	outside, err := p.GW.EchoTCP(netip.AddrPortFrom(lab.SimpleInternet, 7000))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bandwidth", "every-key", "firewall", "portmap", "portmap-bandwidth", "sbr", "tuning"} {
		options := []string(nil)
		if p.network = name; name == "sbr" { // as a second interface
			p.network, options = podmanNetwork, []string{"--network", name}
		}
		a := p.run("a", options...)
		if from := p.dial("a", outside.Addr); from != a.ip {
			t.Errorf("%s: from %s, want %s", name, from, a.ip)
		}
		p.serves(a, name)
		if want := 1 + len(options)/2; len(p.held()) != want {
			t.Errorf("%s: leased %v, want %d", name, p.held(), want)
		}
		p.rm("a")
		p.clean(name)
	}
}

// named brings a conflist under another network name: podman leaves out a file whose network another one has.
func (p *podman) named(name, text string) {
	p.t.Helper()
	changed := strings.Replace(text, `"name": "`+podmanNetwork+`"`, `"name": "`+name+`"`, 1)
	if changed == text {
		p.t.Fatalf("no name in %s", text)
	}
	p.write(podmanNetDir+"/"+name+".conflist", changed)
}

// What podman's CNI backend makes of a list: versions up to 1.0.0, and a main plugin that it doesn't know is only a plugin about
// which it can say nothing.
func TestNetnsPodman_conflist(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(5)), "10-native-vmss.conflist")
	before := p.snapshot()
	text := shippedText(t, "10-native-vmss.conflist")
	p.named("new", strings.Replace(text, `"cniVersion": "1.0.0"`, `"cniVersion": "1.1.0"`, 1))
	p.named("new-chain", strings.Replace(shippedText(t, "portmap.conflist"), `"cniVersion": "1.0.0"`, `"cniVersion": "1.1.0"`, 1))
	p.named("labelled", strings.Replace(text, "{", `{ "args": { "podman_labels": { "team": "a" } },`, 1))
	p.write(podmanNetDir+"/99-again.conflist", strings.Replace(text, "ipam-vmss", "nowhere", 1))

	a := p.run("a")
	if stdin := p.calls.stdin("ADD"); !strings.Contains(stdin, `"cniVersion":"1.0.0"`) {
		t.Errorf("of the list's versions podman took another: %s", stdin)
	}
	p.serves(a, "the shipped list, beside another of its name")
	if got := p.do("network", "inspect", "--format", "{{.Driver}} {{.Labels}}", "labelled"); got != "native-vmss map[team:a]" {
		t.Errorf("a network with labels is %q", got)
	}
	p.network = "labelled"
	p.serves(p.run("b"), "a network with labels")
	p.rm("--all")

	p.network = "new"
	p.refuses(p.started("c"), `unsupported CNI result version "1.1.0"`)
	p.clean("after a version that podman does not know")
	p.network = "new-chain"
	p.refuses(p.started("d"), "unable to find network", "new-chain")
	p.refuses([]string{"network", "create", "--driver", "native-vmss", "made"}, "native-vmss")
	p.rm("--all")
	p.gone(before)
}
