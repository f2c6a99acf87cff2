package netns

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// br42Udev is a udev rule's work: a value for each link that is new.
const br42Udev = `seen=" "; while :; do for f in /proc/sys/net/ipv4/conf/veth*; do case "$seen" in *" $f "*) ;; *)
	echo $0 >$f/rp_filter && seen="$seen$f "; echo $f >>$1;; esac; done 2>/dev/null; done`

// BR-42: pods of a second NIC work at every rp_filter, and only that of the pod's own link is ever written.
func TestNetnsBR42_rp_filter(t *testing.T) {
	t.Parallel()
	type variant struct{ value, udev string }
	each(t, map[string]variant{
		"pods_of_NIC_2_work_with_strict":                             {"1", ""},
		"pods_of_NIC_2_work_with_loose":                              {"2", ""},
		"pods_of_NIC_2_work_with_none":                               {"0", ""},
		"pods_of_NIC_2_work_where_udev_sets_strict_on_each_new_link": {"1", "1"},
		"pods_of_NIC_2_work_where_udev_sets_loose_on_each_new_link":  {"2", "2"},
	}, func(t *testing.T, v variant) {
		s := newStage(t, lab.SimpleOptions{Pool2: lab.AddrRange(netip.MustParseAddr("10.20.1.50"), 2)})
		s.rpFilter(v.value, "default", "eth0", "eth1")
		if v.udev != "" {
			touched := filepath.Join(s.Dir, "touched")
			ctx, cancel := context.WithCancel(context.Background())
			udev := s.Node.Command(ctx, "sh", "-c", br42Udev, v.udev, touched)
			if err := udev.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { cancel(); _ = udev.Wait() }()
			defer func() {
				if b, err := os.ReadFile(touched); err != nil || !strings.Contains(string(b), "veth") {
					t.Errorf("the script saw no link: %q %v", b, err)
				}
			}()
		}
		one, a := s.podAt("one", "10.20.0.10")
		two, b := s.podAt("two", "10.20.1.50")
		time.Sleep(50 * time.Millisecond) // for the script

		capture, err := s.GW.Capture("to-eth0", "to-eth1")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct {
			pod *lab.Namespace
			ip  netip.Addr
		}{{one, a.IP}, {two, b.IP}} {
			if !s.answers(p.pod, lab.SimpleInternet) {
				t.Errorf("pod %s does not reach the internet", p.ip)
			}
			if !s.echo(s.GW, lab.SimpleInternet, p.ip, echoWait) {
				t.Errorf("the internet does not reach pod %s", p.ip)
			}
		}
		s.check("one", one, a).ok()
		s.check("two", two, b).ok()
		report, err := capture.Stop()
		if err != nil || report.Dropped > 0 {
			t.Fatalf("capture: %v, %d frames missed", err, report.Dropped)
		}
		for link, own := range map[string][]netip.Addr{"to-eth0": {lab.SimpleNode, a.IP}, "to-eth1": {lab.SimpleNode2, b.IP}} {
			for _, src := range own { // the request masqueraded, the answer under the pod's own address
				if n := report.Sum(func(f lab.Flow) bool { return f.Link == link && !f.Out && f.Src == src && f.Proto == 1 }).Frames; n != 1 {
					t.Errorf("%d echo packets of %s by %s, want 1", n, src, link)
				}
			}
		}
		for _, line := range report.Violations(func(f lab.Flow, _ lab.Tally) string {
			second := lab.SimpleSubnet2.Contains(f.Src)
			if f.Kind != lab.KindIPv4 || f.Out || second == (f.Link == "to-eth1") {
				return ""
			}
			return "by the wrong NIC"
		}) {
			t.Error(line)
		}
		for _, link := range []string{"all", "default", "eth0", "eth1"} {
			if got := s.sh("sysctl -n net.ipv4.conf." + link + ".rp_filter"); got != v.value {
				t.Errorf("rp_filter of %s is %s, it was %s", link, got, v.value)
			}
		}
	})
}
