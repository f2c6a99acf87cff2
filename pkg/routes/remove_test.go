package routes

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

func TestNetnsRemove(t *testing.T) {
	l := newLab(t)
	must(t, l.k.ApplySysctls(t.Context(), []string{"eth0"}))
	before := l.state()
	a, b := l.attach(1, "10.20.0.10"), l.attach(2, "10.20.0.11")
	echo(t, b.NS, "10.20.0.11:7")
	for range 2 { // again: nothing there, no error
		must(t, l.k.Remove(t.Context(), a.pair.Name, a.key, a.addr))
		wantSource(t, l.node, "10.20.0.11:7", "10.20.0.4")
	}
	if out := a.Run("ip -o link"); strings.Contains(out, "eth0") {
		t.Errorf("left in the pod: %s", out)
	}
	must(t, l.k.Remove(t.Context(), b.pair.Name, b.key, netip.Addr{}))
	if after := l.state(); after != before {
		t.Errorf("left on the node:\n%s\nbefore:\n%s", after, before)
	}
}

func TestNetnsRemove_podGone(t *testing.T) {
	l := newLab(t)
	a := l.attach(1, "10.20.0.10")
	a.pod.Close()
	a.NS.Close()
	for range 100 { // the kernel takes namespaces apart in the background
		if _, found, _ := l.k.Link(t.Context(), a.pair.Name); !found {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	must(t, l.k.Remove(t.Context(), a.pair.Name, a.key, a.addr))
}

func TestNetnsRemove_unfinished(t *testing.T) {
	l := newLab(t)
	p := testPair(1)
	must(t, l.k.CreatePair(t.Context(), l.open(nstest.Beside(t)), &p))
	must(t, l.k.Remove(t.Context(), p.Name, Hash{9}, netip.MustParseAddr(freeAddr)))
	if _, found, err := l.k.Link(t.Context(), p.Name); err != nil || found {
		t.Errorf("link %v, %v", found, err)
	}
}

func TestNetnsRemove_foreign(t *testing.T) {
	const name = "veth00000000001"
	tests := []struct{ name, setup string }{
		{"ifb", "ip link add " + name + " type ifb"},
		{"live veth", "ip link add " + name + " type veth peer name x ; ip link set " + name + " up"},
		{"other name of the NIC", "ip link property add dev eth0 altname " + name},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.runAll(tt.setup)
			l.runAll("ip route add 10.20.0.10/32 dev eth0")
			before := l.state()
			wantError(t, l.k.Remove(t.Context(), name, Hash{1}, netip.MustParseAddr(freeAddr)), ErrForeignLink)
			if after := l.state(); after != before {
				t.Errorf("changed to %s", after)
			}
			p := testPair(1)
			wantError(t, l.k.CreatePair(t.Context(), l.open(nstest.Beside(t)), &p), ErrLinkExists)
		})
	}
}

// A late DEL of an attachment whose address another one has by now.
func TestNetnsRemove_addressOfAnother(t *testing.T) {
	l := newLab(t)
	a := l.attach(1, freeAddr)
	echo(t, a.NS, freeAddr+":7")
	must(t, l.k.Remove(t.Context(), "veth00000000009", Hash{9}, a.addr))
	wantError(t, l.k.Remove(t.Context(), a.pair.Name, Hash{9}, a.addr), ErrForeignLink)
	wantSource(t, l.node, freeAddr+":7", "10.20.0.4")
}

// The name is the key's and the group ours: whatever others wrote as its alias, the link goes.
func TestNetnsRemove_overwrittenAlias(t *testing.T) {
	l := newLab(t)
	a := l.attach(1, freeAddr)
	l.runAll("ip link set " + a.pair.Name + " alias web-frontend")
	must(t, l.k.Remove(t.Context(), a.pair.Name, a.key, a.addr))
	if _, found, err := l.k.Link(t.Context(), a.pair.Name); err != nil || found {
		t.Errorf("link %v, %v", found, err)
	}
}

// A route of ours to a link that nobody can tell the owner of keeps the address from being released.
func TestNetnsRemoveRoute_unknownLink(t *testing.T) {
	l := newLab(t)
	a := l.attach(1, freeAddr)
	l.runAll("ip link set " + a.pair.Name + " alias web-frontend")
	wantError(t, l.k.RemoveRoute(t.Context(), a.key, a.addr), ErrNotGone)
}

func TestNetnsRemove_strayRoute(t *testing.T) {
	l := newLab(t)
	l.runAll("ip route add 10.20.0.10/32 dev eth0 proto 217 ; ip route add 10.20.0.11/32 dev eth0")
	must(t, l.k.Remove(t.Context(), "veth00000000001", Hash{1}, netip.MustParseAddr("10.20.0.10")))
	must(t, l.k.Remove(t.Context(), "veth00000000001", Hash{1}, netip.MustParseAddr("10.20.0.11")))
	if out := l.node.Run("ip route"); strings.Contains(out, "10.20.0.10") || !strings.Contains(out, "10.20.0.11") {
		t.Errorf("routes: %s", out)
	}
}

func TestNetnsLinks(t *testing.T) {
	l := newLab(t)
	a := l.attach(1, freeAddr)
	p := testPair(2)
	must(t, l.k.CreatePair(t.Context(), l.open(nstest.Beside(t)), &p))
	links, err := l.k.Links(t.Context())
	must(t, err)
	if len(links) != 2 || !links[0].Marked || links[0].Alias.Key != a.key || !links[0].Up || links[1].Marked || links[1].AliasText != "" {
		t.Errorf("%+v", links)
	}
}

// A dump that others disturb is repeated, and never a part of the truth.
func TestNetnsLinks_interrupted(t *testing.T) {
	l := newLab(t)
	for i := range 40 {
		l.node.Run("ip link add d" + string(rune('A'+i)) + " type ifb")
	}
	l.attach(1, freeAddr)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = l.node.Try("ip link add churn type ifb")
				_, _ = l.node.Try("ip link del churn")
			}
		}
	}()
	for range 100 {
		links, err := l.k.Links(t.Context())
		if err == nil && len(links) != 1 {
			t.Errorf("%d links", len(links))
		}
	}
	close(stop)
	<-done
}
