package netns

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// The steps of TestNetnsCaller_containerd in which somebody dies or gives up.

func (s *criSteps) restart(n *criNode) {
	p := n.pods[0]
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		conn, err := s.cloud.Hub.DialTCP(chainContext(n.t), netip.Addr{}, netip.AddrPortFrom(p.ip, 80), echoWait)
		if err != nil {
			n.t.Fatal(err)
		}
		n.echoes(conn, sig.String()+" is to come")
		in, alone := n.stream(s.cloud.Hub, p.ip), n.stream(s.cloud.Hub, n.pods[criPool-1].ip)
		n.end(sig)
		n.start()
		n.await("a network that is ready", func(st criStatus) bool { return st.NetworkReady.Status })
		in()
		alone()
		n.echoes(conn, sig.String()+" was sent")
		conn.Close()
		if got := n.sandboxes(); got != criPool {
			n.t.Errorf("after %v: %d sandboxes, want %d", sig, got, criPool)
		}
		n.dials(p, netip.AddrPortFrom(lab.CloudHub, 80))
	}
	if held := n.held(); len(held) != criPool {
		n.t.Errorf("leased: %v, want %d", held, criPool)
	}
}

// killed starts a pod and kills containerd while a call is under way, which nobody waits for then.
func (n *criNode) killed(verb, pod string) criCall {
	n.t.Helper()
	n.rested()
	done := make(chan error, 1)
	call, release := n.calling(verb, func() {
		p := n.configured(pod)
		go func() { done <- n.runSandbox(p) }()
	})
	n.end(syscall.SIGKILL)
	release()
	if err := <-done; err == nil {
		n.t.Error("the pod was started")
	}
	n.awaitEnd(call)
	return call
}

// rested waits for an address: the pool is small, and on a fast machine all of them may be cooling.
func (n *criNode) rested() {
	n.t.Helper()
	const coolDown = 30 // seconds, the default
	type row struct {
		State      string
		ForSeconds int64
	}
	assignable := func(r row) bool { return r.State == "free" || r.State == "cooling" && r.ForSeconds > coolDown }
	if !pathEventually(criStart, func() bool {
		return slices.ContainsFunc(pathJSON[[]row](n.t, n.mustCtl("ipam", "list", "-a", "-o", "json")), assignable)
	}) {
		n.t.Fatal("no address is free: " + n.mustCtl("ipam", "list", "-a"))
	}
}

// recovered has kubelet remove what the next containerd remembers.
func (n *criNode) recovered() {
	n.t.Helper()
	n.start()
	for _, id := range strings.Fields(n.mustCrictl("pods", "-q", "--no-trunc")) {
		n.mustCrictl("stopp", id)
		n.mustCrictl("rmp", id)
	}
	n.forgotten("after the start of another containerd")
}

// unlinked waits until the kernel has no pod's link: it takes namespaces apart in its own time.
func (n *criNode) unlinked() {
	n.t.Helper()
	if !pathEventually(criStart, func() bool { return len(n.podLinks()) == 0 }) {
		n.t.Fatalf("links %v are still there", n.podLinks())
	}
}

// lateDEL tells whether a release sends DEL for a pod of whose ADD it has no result; README has it too.
var lateDEL = map[string]bool{"1.6.20": true, "2.1.4": false}

// killedInADD: the plugin's standard output leads nowhere when it is done, and nobody may send DEL.
func (s *criSteps) killedInADD(n *criNode) {
	n.killed("ADD", "unlucky")
	n.clean("after an ADD that nobody waited for")
	n.recovered()
	n.clean("after the start of another containerd")
}

// killedAfterADD: ours had printed its result and another plugin of the list was at work, so that nothing but DEL could undo it.
// A release that sends none removes the pod's namespace, and the lease is seen to have no link.
func (s *criSteps) killedAfterADD(n *criNode) {
	id := n.killed("portmap-ADD", "half-made").id
	n.recovered()
	sent := n.called("DEL", id) > 0
	if want, known := lateDEL[n.version()]; known && sent != want {
		n.t.Errorf("containerd %s sent DEL: %t, want %t", n.version(), sent, want)
	}
	n.unlinked()
	for _, offset := range []string{"0s", "61s"} {
		if out, err := n.ctlEnv("failpoint/vmssctl", []string{"NVT_CLOCK_OFFSET=" + offset}, "node", "repair"); err != nil {
			n.t.Fatalf("repair: %v: %s", err, out)
		}
	}
	n.clean("after the repair")
}

// killedInDEL: the DEL that nobody waits for any more and those that kubelet asks for afterwards begin at the same time.
func (s *criSteps) killedInDEL(n *criNode) {
	n.rested()
	p := n.configured("unlucky-too")
	if err := n.runSandbox(p); err != nil {
		n.t.Fatal(err)
	}
	done := make(chan error, 1)
	del, release := n.calling("DEL", func() { go func() { _, err := n.crictl("stopp", p.id); done <- err }() })
	n.end(syscall.SIGKILL)
	if err := <-done; err == nil {
		n.t.Error("the pod was stopped")
	}
	n.start()
	again, dels := make(chan error, 1), n.called("DEL", p.id)
	go func() { _, err := n.crictl("stopp", p.id); again <- err }()
	waitFor(n.t, "the second DEL", func() bool { return n.called("DEL", p.id) > dels })
	release()
	if err := <-again; err != nil {
		n.t.Errorf("stop it again: %v", err)
	}
	n.awaitEnd(del)
	n.remove(p)
	n.clean("after the second stop")
}

// kubeletGivesUp: containerd kills the plugin, which waits for somebody's lock, and sends DEL at once.
func (s *criSteps) kubeletGivesUp(n *criNode) {
	lock, err := os.OpenFile(n.Node.Path(stateDir+"/ipam.lock"), os.O_RDWR, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		n.t.Fatal(err)
	}
	done, before, p := make(chan error, 1), n.calls(), n.configured("too-late")
	dels := n.called("DEL", "")
	go func() {
		_, err := n.crictl("-t", "5s", "runp", p.conf)
		done <- err
	}()
	if !pathEventually(criStart, func() bool { return n.called("DEL", "") > dels }) {
		n.t.Fatalf("no DEL: %v", n.calls())
	}
	lock.Close()
	if err := <-done; err == nil {
		n.t.Error("the pod was started")
	}
	for _, call := range n.calls()[len(before):] {
		n.awaitEnd(call)
	}
	n.clean("after an ADD that took too long")
	n.forgotten("after an ADD that took too long")
}

// reboot: the node's memory is gone and containerd's disk isn't, so that it has kubelet stop pods that no plugin knows.
func (s *criSteps) reboot(n *criNode) {
	var old []*criPod
	for i := range 3 {
		old = append(old, n.configured(fmt.Sprintf("old-%d", i)))
		if err := n.runSandbox(old[i]); err != nil {
			n.t.Fatal(err)
		}
	}
	n.end(syscall.SIGKILL)
	if err := n.group.Remove(); err != nil {
		n.t.Fatal(err)
	}
	n.sh(`grep -o " ` + criDir + `/state[^ ]*" /proc/mounts | tac | xargs -r umount -l
		umount -l /run/netns; mount -t tmpfs tmpfs /run/netns
		rm -rf ` + stateDir + " " + criDir + `/state /var/lib/cni/*
		nft flush ruleset
		ip rule flush; ip rule add from all lookup main prio 32766; ip rule add from all lookup default prio 32767
		ip route flush table 28201; ip route flush proto 217`)
	n.unlinked()
	if err := n.Node.SetBootID("11111111-2222-3333-4444-777777777777"); err != nil {
		n.t.Fatal(err)
	}
	n.start()
	p := n.configured("new")
	if err := n.runSandbox(p); err != nil {
		n.t.Fatal(err)
	}
	n.remove(old...)
	if held := n.held(); !slices.Equal(held, []netip.Addr{p.ip}) {
		n.t.Errorf("leased: %v, want %s", held, p.ip)
	}
	if !n.answers(s.cloud.Hub, p.ip) {
		n.t.Errorf("the hub does not reach %s", p.ip)
	}
	n.remove(p)
	n.clean("after the last pod")
}
