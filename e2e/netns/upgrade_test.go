package netns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// setSchema writes another schema number into the store, as internal/boltfile/doc.go draws it, without the product.
func (s *stage) setSchema(n uint32) {
	s.t.Helper()
	db, err := bolt.Open(s.Node.Path(stateDir+"/ipam.db"), 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("meta"))
		old := b.Get([]byte("complete"))
		v := binary.LittleEndian.AppendUint32(nil, n)
		v = append(v, old[4:len(old)-4]...) // the boot id
		sum := crc32.Checksum(slices.Concat([]byte("meta\x00complete"), v), crc32.MakeTable(crc32.Castagnoli))
		return b.Put([]byte("complete"), binary.LittleEndian.AppendUint32(v, sum))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) storeBytes() []byte {
	s.t.Helper()
	b, err := os.ReadFile(s.Node.Path(stateDir + "/ipam.db"))
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// After a downgrade the store is a newer version's: ADD and STATUS say so, pods live on, CHECK and DEL go by the kernel's marks,
// and the store stays byte for byte what it was, so that the next upgrade finds every lease.
func TestNetnsUpgrade_store_of_a_newer_version(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(6))
	s.settle()
	nobody := s.snapshot()
	stays, a := s.pathPod("stays")
	ends, b := s.pathPod("ends")
	dead, c := s.pathPod("dead")
	ptp := s.conf(func(top map[string]any) { top["name"], top["type"] = "foreign", "ptp" })
	foreign := s.call("ADD", "foreign", s.Pod(t, "foreign"), withStdin(ptp))
	if o := s.Node.RunPlugin(chainContext(t), program(t, "ipam-vmss"), foreign); !o.OK() {
		t.Fatalf("ipam-vmss: %s", o.Stdout)
	}
	leases := s.pathLeases()
	s.setSchema(3)
	store, files := s.storeBytes(), s.sh("ls -A "+stateDir)
	newer := []string{"newer schema", "ipam.db has 3", "reads up to 2"}

	q := s.Pod(t, "q")
	during := s.snapshot()
	s.add("q", q).fails(5, newer...)
	s.status().fails(50, newer...)
	s.gc("stays").fails(5, newer...)
	if out, err := s.ctl("node", "repair"); err == nil || !strings.Contains(out, "newer schema") {
		t.Errorf("repair: %v %s", err, out)
	}
	s.podEmpty(q, "after a refused ADD")
	s.unchanged(during)

	s.check("stays", stays, a).ok()
	old := s.pathKeyed(network, nil)
	old.top["cniVersion"] = "1.0.0" // whose results have no MTU
	s.run(s.call("CHECK", "stays", stays, withStdin(old.conf(func(top map[string]any) {
		top["prevResult"] = pathJSON[map[string]any](t, string(bytes.ReplaceAll(a.Stdout, []byte(`"1.1.0"`), []byte(`"1.0.0"`))))
	})))).ok()
	s.sh("ip route del " + a.IP.String())
	s.check("stays", stays, a).fails(103, "route "+a.IP.String())
	s.sh("ip route add " + a.IP.String() + " dev " + a.HostLink + " protocol " + pathProtocol)
	s.check("stays", stays, a).ok()
	wrong := *a
	wrong.Stdout = bytes.ReplaceAll(a.Stdout, []byte(a.IP.String()+"/"), []byte(b.IP.String()+"/"))
	s.check("stays", stays, &wrong).fails(103, "alias", b.IP.String())

	s.del("ends", ends).ok()
	s.podEmpty(ends, "after DEL")
	s.powerLoss(dead, c)
	s.del("dead", nil, withNetns("")).ok()
	s.del("ends", ends).ok()
	s.del("never-seen", nil).ok()
	foreign.Command = "DEL" // whose address no mark of ours tells: the runtime has to call again
	s.judge(foreign, s.Node.RunPlugin(chainContext(t), program(t, "ipam-vmss"), foreign)).fails(5, newer...)
	if links := s.podLinks(); !slices.Equal(links, []string{a.HostLink}) {
		t.Errorf("links %v, want that of the pod that stays, %s", links, a.HostLink)
	}
	s.reaches(stays, a.IP)
	if !bytes.Equal(s.storeBytes(), store) || s.sh("ls -A "+stateDir) != files {
		t.Errorf("the newer version's store was changed; files %s", s.sh("ls -A "+stateDir))
	}

	s.setSchema(2) // that version is back
	if now := s.pathLeases(); !maps.Equal(now, leases) {
		t.Errorf("leases %v, before the downgrade %v", now, leases)
	}
	s.check("stays", stays, a).ok()
	s.gc("stays").ok() // what ended meanwhile
	if o := s.Node.RunPlugin(chainContext(t), program(t, "ipam-vmss"), foreign); !o.OK() {
		t.Errorf("DEL of the foreign pod: %s", o.Stdout)
	}
	if held := s.held(); !slices.Equal(held, []netip.Addr{a.IP}) {
		t.Errorf("leased %v, want %s", held, a.IP)
	}
	s.add("q", q).ok()
	s.reaches(stays, a.IP)
	s.del("q", q).ok()
	s.del("stays", stays).ok()
	s.noLeak(nobody)
}

// earlier builds the plugins and vmssctl as of another version, for people who replace them.
func earlier(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"plugins/native-vmss", "plugins/ipam-vmss", "cmd/vmssctl"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags",
			"-X github.com/native-vmss/native-vmss/internal/version.String=v0.0.1-earlier", "-o", dir+"/", "../../"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v: %s", name, err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "native-vmss")).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("v0.0.1-earlier")) {
		t.Fatalf("version of the earlier build: %v %s", err, out)
	}
	return dir
}

// Binaries are replaced, by a rename, while pods live and while one of them runs: pods of either build are checked, repaired and
// taken down by the other.
func TestNetnsUpgrade_binaries_replaced(t *testing.T) {
	t.Parallel()
	old := earlier(t)
	installed := t.TempDir()
	names := []string{"native-vmss", "ipam-vmss", "vmssctl"}
	// The copies come before the renames: these happen under a lock for which an ADD waits but ten seconds.
	bring := func(from string) (install func()) {
		t.Helper()
		for _, name := range names {
			s, err := os.ReadFile(filepath.Join(from, name))
			if err := errors.Join(err, os.WriteFile(filepath.Join(installed, name+".new"), s, 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		return func() {
			t.Helper()
			for _, name := range names {
				target := filepath.Join(installed, name)
				if err := os.Rename(target+".new", target); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	s := newStage(t, poolOf(8))
	current := s.path
	s.path = installed
	run := func(c lab.Call) *answer {
		t.Helper()
		return s.judge(c, s.Node.RunPlugin(chainContext(t), filepath.Join(installed, "native-vmss"), c))
	}
	repair := func() {
		t.Helper()
		out, err := s.Node.Command(context.Background(), filepath.Join(installed, "vmssctl"), "node", "repair").CombinedOutput()
		if err != nil {
			t.Errorf("repair: %v: %s", err, out)
		}
	}
	settle := s.Pod(t, "settle")
	bring(current)()
	run(s.call("ADD", "settle", settle)).ok()
	run(s.call("DEL", "settle", settle)).ok()
	before := s.snapshot()
	for way, from := range map[string][2]string{"up": {old, current}, "down": {current, old}} {
		bring(from[0])()
		pods := map[string]*lab.Namespace{}
		added := map[string]*answer{}
		for _, id := range []string{way + "1", way + "2", way + "3"} {
			pods[id] = s.Pod(t, id)
		}
		for _, id := range []string{way + "1", way + "2"} {
			added[id] = run(s.call("ADD", id, pods[id])).ok()
		}
		// The third one's ADD waits for the lock of the store while its binary is replaced.
		install := bring(from[1])
		lock, err := os.Open(s.Node.Path(stateDir + "/ipam.lock"))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		third := s.call("ADD", way+"3", pods[way+"3"])
		_, wait := s.Node.StartPlugin(chainContext(t), filepath.Join(installed, "native-vmss"), third)
		time.Sleep(200 * time.Millisecond)
		install()
		lock.Close()
		added[way+"3"] = s.judge(third, wait()).ok()

		streams := map[string]func(){}
		for id, a := range added {
			run(s.call("CHECK", id, pods[id], withStdin(s.prev(a)))).ok()
			streams[id] = s.stream(pods[id], lab.SimpleGateway)
		}
		repair()
		for _, lossless := range streams {
			lossless() // nobody notices
		}
		for id, a := range added {
			s.sh("ip route del " + a.IP.String() + "; ip link set " + a.HostLink + " down")
			run(s.call("CHECK", id, pods[id], withStdin(s.prev(a)))).fails(103)
		}
		repair()
		for id, a := range added {
			run(s.call("CHECK", id, pods[id], withStdin(s.prev(a)))).ok()
			s.reaches(pods[id], a.IP)
			run(s.call("DEL", id, pods[id])).ok()
			s.podEmpty(pods[id], "after DEL")
		}
		s.noLeak(before)
	}
}

// layoutNoise is what differs between two nodes of one layout: a generation, the inode of a namespace, the hash of the node-wide
// values with the number of the NIC's link.
var layoutNoise = regexp.MustCompile(`(nvm1 [0-9.]+) [0-9a-f]{16} (\S+ \S+) [0-9]+|cfg_[0-9a-f]{16}`)

// layout is what is new on a node and in a pod since before, as ip, nft and the file system show it.
func (s *stage) layout(before lab.Snapshot, pod *lab.Namespace) string {
	s.t.Helper()
	var lines []string
	for _, line := range before.Diff(s.snapshot()) {
		// The table of counters is no pod's life: pkg/accounting has its form in a golden file, and makes it anew where it is another.
		if !strings.HasPrefix(line, "file ") && !strings.Contains(line, `"native_vmss_acct"`) {
			lines = append(lines, layoutNoise.ReplaceAllString(line, "$1 * $2 *"))
		}
	}
	const here = "ip -br addr; ip -o link show group 28278 | cut -d: -f2; ip neigh show proxy; ip neigh show nud permanent"
	inPod := "ip -br addr; ip link show eth0 | grep ether; ip route show table all; ip neigh show nud permanent; ip rule; " +
		"sysctl net.ipv6.conf.eth0.disable_ipv6 net.ipv4.conf.eth0.arp_ignore"
	text := strings.Join(lines, "\n") + "\n" + s.sh(here) + "\n" + s.in(pod, inPod)
	return regexp.MustCompile(`@if\d+|link-netns \S+|brd \S+`).ReplaceAllString(text, "")
}

// layout1 makes by hand what layout 1 has, and the pod c1 in it.
func (s *stage) layout1() *lab.Namespace {
	s.t.Helper()
	script, err := os.ReadFile("testdata/layout1.sh")
	if err != nil {
		s.t.Fatal(err)
	}
	p := s.Pod(s.t, "c1")
	info, err := os.Stat(p.Path)
	if err != nil {
		s.t.Fatal(err)
	}
	inode := info.Sys().(*syscall.Stat_t).Ino
	s.sh(fmt.Sprintf("POD=%s INODE=%d\n%s", p.Name, inode, script))
	return p
}

// What lies in the kernel is layout 2, mark by mark. When this fails on purpose, the pods of running nodes have the old one:
// layoutVersion in pkg/node has to change for node-wide objects, the first word of the alias for a pod's, and layout1.sh and layout2.sh
// stay.
func TestNetnsUpgrade_layout_is_2(t *testing.T) {
	t.Parallel()
	one, two := newStage(t, lab.SimpleOptions{}), newStage(t, lab.SimpleOptions{})
	empty := one.snapshot()
	p, a := one.pathPod("c1")
	if a.IP.String() != "10.20.0.10" {
		t.Fatalf("the first pod has %s", a.IP)
	}
	ptp := one.conf(func(top map[string]any) { top["type"] = "ptp" })
	foreign := one.call("ADD", "foreign", one.Pod(t, "foreign"), withStdin(ptp))
	if o := one.Node.RunPlugin(chainContext(t), program(t, "ipam-vmss"), foreign); !o.OK() {
		t.Fatalf("ipam-vmss: %s", o.Stdout)
	}
	emptyToo := two.snapshot()
	byHand := two.layout1()
	more, err := os.ReadFile("testdata/layout2.sh")
	if err != nil {
		t.Fatal(err)
	}
	two.sh(string(more))
	diff := ""
	pathEventually(echoWait, func() bool { // the state of a link that has just come up changes by itself
		diff = cmp.Diff(two.layout(emptyToo, byHand), one.layout(empty, p))
		return diff == ""
	})
	if diff != "" {
		t.Errorf("(-layout 2 +what ADD made):\n%s", diff)
	}
}

// Pods of layout 1 live on under this version, even when the store is lost: their addresses are leased under the generation of
// their alias, they are checked and repaired, and DEL takes all of them.
func TestNetnsUpgrade_pods_of_layout_1(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	p := s.layout1()
	ip, noted := netip.MustParseAddr("10.20.0.10"), netip.MustParseAddr("10.20.0.11")
	// A link that has just come up drops what it is given until the kernel has got round to it.
	if !pathEventually(patience, func() bool { return s.echo(p, netip.Addr{}, lab.SimpleGateway, silence) }) {
		t.Fatalf("the pod made by hand does not reach the gateway: %s", s.in(p, "ip addr; ip route; ip neigh"))
	}
	lossless := s.stream(p, lab.SimpleGateway)
	result := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"veth8c6d37388d8","mac":"02:57:9c:95:21:e6","mtu":1500},`+
		`{"name":"eth0","mac":"02:57:9c:95:21:e7","mtu":1500,"sandbox":%q}],"ips":[{"interface":1,"address":"10.20.0.10/32"}]}`, p.Path)
	a := &answer{stage: s, Outcome: lab.Outcome{Stdout: []byte(result)}, IP: ip, HostLink: "veth8c6d37388d8"}

	s.check("c1", p, a).ok()
	leases := s.pathLeases()
	if leases[ip.String()] != 42 || leases[noted.String()] == 0 || len(leases) != 2 {
		t.Errorf("leases %v, want %s of generation 42 and %s", leases, ip, noted)
	}
	s.add("c1", p).fails(4, "interface exists")
	s.check("c1", p, a).ok()
	s.mustCtl("node", "repair") // makes the node-wide objects anew
	s.check("c1", p, a).ok()
	lossless()
	time.Sleep(restAfterRebuild)
	for i := range 3 { // all others of five
		if _, b := s.pathPod(fmt.Sprintf("n%d", i)); b.IP == ip || b.IP == noted {
			t.Errorf("%s was given out", b.IP)
		}
	}
	s.add("n3", s.Pod(t, "n3")).fails(11, "5 leased")

	s.sh("ip route del " + ip.String() + "; ip link set veth8c6d37388d8 down; nft delete table ip native_vmss")
	s.check("c1", p, a).fails(103)
	s.mustCtl("node", "repair")
	s.check("c1", p, a).ok()
	s.reaches(p, ip)
	s.del("c1", p).ok()
	s.podEmpty(p, "after DEL")
	for i := range 3 {
		s.del(fmt.Sprintf("n%d", i), nil).ok()
	}
	if left := s.ourState(); len(left) > 0 {
		t.Errorf("left in the kernel: %v", left)
	}
	if held := s.held(); !slices.Equal(held, []netip.Addr{noted}) {
		t.Errorf("leased %v, want %s alone, whose pod nobody can name", held, noted)
	}
}
