package netns

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// What GC is held to, row by row of the contract: G1 what isn't listed goes, of this network alone; G2 both names of the list;
// G3 empty, null and no list; G4 another IPAM gets the same; G5 an error stops nothing; G6 no namespace is needed, and two
// runtimes share a node.

// gcWith asks for GC with one more key in the configuration; "" for none.
func (s *stage) gcWith(keys map[string]any) *answer {
	s.t.Helper()
	stdin := s.conf(func(top map[string]any) {
		for k, v := range keys {
			top[k] = v
		}
	})
	return s.run(s.call("GC", "", nil, withStdin(stdin), without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS")))
}

// attachments is a list for GC.
func attachments(ids ...string) []any {
	list := []any{}
	for _, id := range ids {
		list = append(list, map[string]any{"containerID": id, "ifname": "eth0"})
	}
	return list
}

// holdsOnly wants these addresses to be leased, each with a link and a way to its pod, and no others.
func (s *stage) holdsOnly(when string, want ...netip.Addr) {
	s.t.Helper()
	slices.SortFunc(want, netip.Addr.Compare)
	if held := s.held(); !slices.Equal(held, want) {
		s.t.Errorf("%s: leased %v, want %v", when, held, want)
	}
	if links := s.podLinks(); len(links) != len(want) {
		s.t.Errorf("%s: links %v, want %d", when, links, len(want))
	}
	for _, a := range want {
		if !s.answers(s.GW, a) {
			s.t.Errorf("%s: %s was cut off", when, a)
		}
	}
}

func TestNetnsGC_G1_of_this_network_alone(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(8))
	one, two := s.list("net-one", "1.1.0", ours(vmss())), s.list("net-two", "1.1.0", ours(vmss()))
	p1, p2, other := s.sandbox("p1"), s.sandbox("p2"), s.sandbox("other")
	a1, a2, a3 := addrOf(t, one.add(p1)), addrOf(t, one.add(p2)), addrOf(t, two.add(other))
	gc := func(c *chain, alive ...lab.Pod) {
		t.Helper()
		if err := c.rt.GC(chainContext(t), alive...); err != nil {
			t.Fatalf("GC: %v", err)
		}
	}
	gc(one, p1, p2)
	s.holdsOnly("all are valid", a1, a2, a3)
	gc(one, p1)
	s.holdsOnly("p2 isn't", a1, a3)
	gc(one, other)
	s.holdsOnly("a key of another network isn't ours", a3)
	gc(two)
	s.holdsOnly("nobody is")
	s.clean("after GC")
	gc(two)
	one.del(p1)
}

func TestNetnsGC_G2_both_names_of_the_list(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(8))
	for i, names := range [][]string{
		{"cni.dev/valid-attachments"}, {"cni.dev/attachments"}, {"cni.dev/valid-attachments", "cni.dev/attachments"},
	} {
		id := fmt.Sprintf("stays%d", i)
		_, stays := s.pathPod(id)
		s.pathPod(fmt.Sprintf("goes%d", i))
		keys := map[string]any{}
		for _, name := range names {
			keys[name] = attachments(id)
		}
		s.gcWith(keys).ok()
		s.holdsOnly(strings.Join(names, " and "), stays.IP)
		for _, name := range names {
			keys[name] = "rubbish"
		}
		s.gcWith(keys).fails(7)
		for _, name := range names {
			keys[name] = []any{map[string]any{"ifname": "eth0"}}
		}
		s.gcWith(keys).fails(7)
		s.holdsOnly("after lists that can't be read", stays.IP)
		s.del(id, nil).ok()
	}
}

// Empty and null say that nothing is valid; no list at all proves nothing, and only what has no link goes.
func TestNetnsGC_G3_empty_null_and_no_list(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(8))
	for i, form := range []any{[]any{}, nil} {
		s.pathPod(fmt.Sprintf("live%d", i))
		s.gcWith(map[string]any{"cni.dev/valid-attachments": form}).ok()
		s.clean("after an empty list")
	}
	p, a := s.pathPod("live")
	s.pathPod("dead")
	s.sh("ip link del " + linkOf("dead", "eth0"))
	s.gcWith(nil).ok()
	s.holdsOnly("without a list", a.IP)
	s.check("live", p, a).ok()
}

func TestNetnsGC_G4_another_IPAM_gets_the_same(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	f := newForeign(s, `{"cniVersion":"1.1.0","ips":[{"address":"10.20.0.12/24"}]}`)
	c := s.list(network, "1.1.0", ours(map[string]any{"type": f.name}))
	c.rt = f.runtime(c)
	p1, p2 := s.sandbox("p1"), s.sandbox("p2")
	c.add(p1)
	if err := c.rt.GC(chainContext(t), p1); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(f.stdin("GC"), `"containerID":"p1"`) {
		t.Errorf("GC was not forwarded: %s", f.calls())
	}
	if links := s.podLinks(); len(links) != 1 {
		t.Errorf("links %v, want that of p1", links)
	}
	// By hand: libcni would DEL what it knows and isn't listed before it asks for GC.
	stdin := s.conf(func(top map[string]any) {
		top["ipam"], top["x-note"] = map[string]any{"type": f.name}, "whole"
		top["cni.dev/valid-attachments"] = attachments(p2.ID)
	})
	gc := s.call("GC", "", nil, withStdin(stdin), func(c *lab.Call) { c.Path = f.path() },
		without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"))
	s.run(gc).ok()
	if left := s.ourState(); len(left) != 0 {
		t.Errorf("left of an attachment that isn't valid: %v", left)
	}
	if got := f.stdin("GC"); got != string(stdin) {
		t.Errorf("the IPAM was given %s, want %s", got, stdin)
	}
}

// Our own part is done although the IPAM fails, and the other way round; all that failed is in the text.
func TestNetnsGC_G5_an_error_stops_nothing(t *testing.T) {
	t.Parallel()
	t.Run("of_the_IPAM", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		f := newForeign(s, `{"cniVersion":"1.1.0","ips":[{"address":"10.20.0.12/24"}]}`)
		c := s.list(network, "1.1.0", ours(map[string]any{"type": f.name}))
		c.rt = f.runtime(c)
		c.add(s.sandbox("p1"))
		f.says("GC", `{"cniVersion":"1.1.0","code":107,"msg":"no collection","details":"today"}`, 1)
		stdin := s.conf(func(top map[string]any) {
			top["ipam"], top["cni.dev/valid-attachments"] = map[string]any{"type": f.name}, nil
		})
		s.run(s.call("GC", "", nil, withStdin(stdin), func(c *lab.Call) { c.Path = f.path() },
			without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"))).fails(107, "no collection")
		if left := s.ourState(); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
	t.Run("of_two_containers_that_are_locked", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(8))
		s.ipam["lockTimeout"] = "500ms"
		var locked []netip.Addr
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			_, a := s.pathPod(id)
			if id == "b" || id == "d" {
				locked = append(locked, a.IP)
				defer s.lockContainer(id)()
			}
		}
		s.gc().fails(11, "release "+locked[0].String(), "release "+locked[1].String(), "containers.lock")
		s.holdsOnly("two were locked", locked...)
	})
}

// lockContainer takes the byte of containers.lock that is this container's: the first 44 bits of its key's hash.
func (s *stage) lockContainer(id string) (unlock func()) {
	s.t.Helper()
	f, err := os.OpenFile(s.Node.Path(stateDir+"/containers.lock"), os.O_RDWR, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	h := sha256.Sum256([]byte(network + "\x00" + id + "\x00eth0"))
	at, err := strconv.ParseInt(hex.EncodeToString(h[:])[:11], 16, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	return func() { f.Close() }
}

func TestNetnsGC_G6_no_namespace_is_needed(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(8))
	s.settle()
	before := s.snapshot()
	gone, _ := s.pathPod("gone")
	plain, _ := s.pathPod("plain")
	_, stays := s.pathPod("stays")
	for _, p := range []*lab.Namespace{gone, plain} {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(plain.Path, nil, 0o600); err != nil { // what a killed runtime leaves of a namespace
		t.Fatal(err)
	}
	defer os.Remove(plain.Path)
	s.gc("stays").ok()
	s.holdsOnly("two pods' namespaces are gone", stays.IP)
	s.gc().ok()
	s.clean("after GC")
	s.sh("conntrack -F 2>/dev/null")
	s.noLeak(before)
}

func TestNetnsGC_G6_two_runtimes_on_one_node(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(8))
	t.Run("networks_of_their_own", func(t *testing.T) {
		s := s.pathAs(t)
		one, two := s.list("net-one", "1.1.0", ours(vmss())), s.list("net-two", "1.1.0", ours(vmss()))
		// The same container id in both: it is the network that tells them apart.
		p, q := s.sandbox("same"), lab.Pod{ID: "same", Netns: s.Pod(t, "other").Path, Namespace: "team-a", Name: "other"}
		one.add(p)
		a := addrOf(t, two.add(q))
		if err := one.rt.GC(chainContext(t)); err != nil {
			t.Fatal(err)
		}
		s.holdsOnly("the first runtime has no pods", a)
		two.del(q)
	})
	t.Run("one_network_without_GC", func(t *testing.T) {
		s := s.pathAs(t)
		one := s.list("net-one", "1.1.0", ours(vmss()))
		a := addrOf(t, one.add(s.sandbox("theirs")))
		shared := s.chained(strings.Replace(one.conflist, `{`, `{"disableGC":true,`, 1))
		if err := shared.rt.GC(chainContext(t)); err != nil { // knows none of the other's pods
			t.Fatal(err)
		}
		s.holdsOnly("GC is off", a)
	})
}

// An ADD that was killed before it marked its link, and a store that was lost since: nothing but the link is left, and without a DEL
// nobody else would ask for it. A live pod whose mark somebody erased stays.
func TestNetnsGC_unfinished_link_without_a_lease(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(8))
	s.settle()
	live, a := s.pathPod("live")
	erased, b := s.pathPod("erased")
	p := s.Pod(t, "p1")
	s.Node.RunPlugin(chainContext(t), program(t, pathFailing), s.call("ADD", "c1", p, at("routes.alias-set#1", "kill")))
	if !s.hasLink(linkOf("c1", "eth0")) {
		t.Fatal("the killed ADD left no link: the test proves nothing")
	}
	s.sh("rm " + stateDir + "/ipam.db; ip link set " + b.HostLink + " alias ''")
	s.gc("live", "erased").ok()
	if s.hasLink(linkOf("c1", "eth0")) {
		t.Error("the unfinished link is left")
	}
	s.podEmpty(p, "after GC")
	s.reaches(live, a.IP)
	s.reaches(erased, b.IP)
	time.Sleep(restAfterRebuild)
	s.add("c1", p).ok()
}
