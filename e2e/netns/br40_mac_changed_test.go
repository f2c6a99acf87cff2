package netns

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// macLoop is what udev does by MACAddressPolicy=persistent: 5 ms after a veth appears it gets another MAC, unless that was
// given to it at its creation (assign type 3, NET_ADDR_SET).
const macLoop = `n=10; while :; do for d in /sys/class/net/veth*; do
	[ -e $d ] || continue
	name=${d##*/}
	case " $seen " in *" $name "*) continue ;; esac
	seen="$seen $name"
	sleep 0.005
	echo "$name $(cat $d/addr_assign_type 2>/dev/null)" >>/run/macloop
	[ "$(cat $d/addr_assign_type 2>/dev/null)" = 3 ] && continue
	n=$((n + 1))
	ip link set $name address 02:aa:bb:cc:dd:$n && echo "$name changed" >>/run/macloop
done; done`

// BR-40: somebody changes the MAC of the host end behind our back.
func TestNetnsBR40_mac_changed(t *testing.T) {
	t.Parallel()
	t.Run("MAC_is_given_at_creation_so_the_loop_leaves_it", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		loop := s.Node.Command(context.Background(), "sh", "-c", macLoop)
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		// A veth of somebody else, to see that the loop bites.
		s.sh("ip link add vethother type veth peer name vetherpeer")
		p := s.Pod(t, "p1")
		a := s.add("c1", p).ok()
		waitFor(t, "the loop at the pod's link", func() bool {
			return s.sh("grep -c '^"+a.HostLink+" ' /run/macloop || true") != "0"
		})
		time.Sleep(50 * time.Millisecond)
		s.reaches(p, a.IP)
		if got := s.sh("cat /sys/class/net/" + a.HostLink + "/addr_assign_type"); got != "3" {
			t.Errorf("assign type of %s is %s, want 3", a.HostLink, got)
		}
		if got := s.sh("cat /sys/class/net/" + a.HostLink + "/address"); got != a.HostMAC {
			t.Errorf("MAC of %s is %s, ADD said %s", a.HostLink, got, a.HostMAC)
		}
		s.check("c1", p, a).ok()
		waitFor(t, "the change of the other veth", func() bool { return s.sh("grep -c 'vethother changed' /run/macloop || true") == "1" })
		if err := loop.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = loop.Wait() // killed
	})

	// A forced change cuts the pod off. CHECK names it, Repair puts the MAC back.
	t.Run("forced_change_is_named_by_CHECK_and_undone_by_repair", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		p := s.Pod(t, "p1")
		a := s.add("c1", p).ok()
		s.sh("ip link set " + a.HostLink + " address 02:aa:bb:cc:dd:ee")
		if s.echo(p, netip.Addr{}, lab.SimpleGateway, silence) {
			t.Log("the pod got through all the same")
		}
		bad := s.check("c1", p, a)
		if bad.OK() {
			t.Fatal("CHECK takes a changed MAC for good")
		}
		bad.says("MAC", "02:aa:bb:cc:dd:ee", a.HostMAC)
		repair := s.Node.Command(context.Background(), program(t, "vmssctl"), "node", "repair")
		if out, err := repair.CombinedOutput(); err != nil {
			t.Fatalf("repair: %v: %s", err, out)
		}
		s.check("c1", p, a).ok()
		s.reaches(p, a.IP)
	})
}
