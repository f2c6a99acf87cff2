package netns

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Hours pass by the offset that the failpoint build adds to its clock. That is the boot clock (internal/boot has the test): a step
// of the wall clock is none for the store. The boot clock leaps when a machine was suspended; it never goes back, and here it does
// all the same.
const clockBegin = 6 * time.Hour

// clocked is a stage whose commands run at a time of their own.
type clocked struct {
	*stage
	at time.Duration
}

func (c *clocked) offset() string { return "NVT_CLOCK_OFFSET=" + c.at.String() }

// do runs a command of a container at the time.
func (c *clocked) do(command, id string, p *lab.Namespace) *answer {
	c.t.Helper()
	return c.runOf(pathFailing, c.call(command, id, p, withEnv(c.offset())))
}

func (c *clocked) repair() string {
	c.t.Helper()
	out, err := c.ctlEnv("failpoint/vmssctl", []string{c.offset()}, "node", "repair")
	if err != nil {
		c.t.Fatalf("repair: %v: %s", err, out)
	}
	return out
}

// The clock steps by three hours. An address that cools neither comes back early nor stays away for the length of the step, live
// pods' leases stay and dead ones go in their time, and metadata is asked again.
func TestNetnsClock_steps(t *testing.T) {
	t.Parallel()
	const cool = 5 * time.Minute // what this test itself takes is none of it
	begin := func(t *testing.T) (c *clocked, live *answer, check func()) {
		c = &clocked{stage: newStage(t, poolOf(3)), at: clockBegin}
		c.ipam["cooldown"] = cool.String()
		p, q, r := c.Pod(t, "live"), c.Pod(t, "dead"), c.Pod(t, "cools")
		live = c.do("ADD", "live", p).ok()
		dead := c.do("ADD", "dead", q).ok()
		c.do("ADD", "cools", r).ok()
		c.do("DEL", "cools", r).ok()
		c.sh("ip link del " + dead.HostLink)
		if out := c.repair(); !strings.Contains(out, "waiting: "+dead.IP.String()) {
			t.Fatalf("repair says %q", out)
		}
		before, err := c.leaseTable()
		if err != nil || len(before) != 2 {
			t.Fatalf("leases %v, %v", before, err)
		}
		return c, live, func() {
			t.Helper()
			c.run(c.call("CHECK", "live", p, withEnv(c.offset()), withStdin(c.prev(live)))).ok()
			c.reaches(p, live.IP)
			now, err := c.leaseTable()
			if err != nil || now[live.IP] != before[live.IP] {
				t.Errorf("lease of the live pod %+v, before the step %+v, %v", now[live.IP], before[live.IP], err)
			}
		}
	}
	t.Run("back", func(t *testing.T) {
		t.Parallel()
		c, live, check := begin(t)
		asked := len(c.MD.Requests())
		step := clockBegin - 3*time.Hour
		c.at = step
		p := c.Pod(t, "new")
		a := c.do("ADD", "new", p)
		a.fails(11, "1 cooling, ")
		if len(c.MD.Requests()) == asked {
			t.Error("metadata was not asked again: the snapshot is from a time to come")
		}
		m := regexp.MustCompile(`ready in (\S+)`).FindStringSubmatch(a.Msg)
		if m == nil {
			t.Fatalf("no time in %q", a.Msg)
		}
		if left, err := time.ParseDuration(strings.TrimRight(m[1], ";,.")); err != nil || left > cool {
			t.Errorf("it cools for another %s, want %s at most", m[1], cool)
		}
		c.repair()
		check()
		c.at = step + 30*time.Second
		c.repair()
		if held := c.held(); len(held) != 2 {
			t.Errorf("leased %v 30 s after the step, want two", held)
		}
		c.at = step + 90*time.Second
		c.repair()
		if held := c.held(); !slices.Equal(held, []netip.Addr{live.IP}) {
			t.Errorf("leased %v 90 s after the step, want %s", held, live.IP)
		}
		c.at = step + 4*time.Minute
		c.do("ADD", "new", p).fails(11, "2 cooling, ")
		c.at = step + 6*time.Minute
		c.do("ADD", "new", p).ok()
		check()
	})
	t.Run("forward", func(t *testing.T) {
		t.Parallel()
		c, live, check := begin(t)
		asked := len(c.MD.Requests())
		c.at = clockBegin + 3*time.Hour
		p := c.Pod(t, "new")
		got := c.do("ADD", "new", p).ok()
		if got.IP == live.IP {
			t.Errorf("%s of a live pod was given out", got.IP)
		}
		if len(c.MD.Requests()) == asked {
			t.Error("metadata was not asked again after three hours")
		}
		c.repair()
		check()
		c.reaches(p, got.IP)
		c.do("DEL", "new", p).ok()
		if st := c.state(got.IP); st != "cooling" {
			t.Errorf("%s is %s", got.IP, st)
		}
	})
}
