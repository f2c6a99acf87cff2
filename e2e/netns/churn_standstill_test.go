package netns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// standstill is between two rounds, when nothing runs: what stands is compared with the model, and the machine may start again.
func (c *churn) standstill(round int) {
	if c.t.Failed() {
		return
	}
	c.agree("at standstill")
	c.cloud.settle()
	switch round % 4 {
	case 1:
		c.reboot(round, true)
	case 3:
		c.reboot(round, false)
	default:
		return
	}
	c.agree(fmt.Sprintf("after the reboot of round %d", round))
}

// agree wants every live pod's lease, link, route and traffic to stand, and nothing of anybody else but of those that are unsure.
func (c *churn) agree(when string) {
	c.t.Helper()
	live, unsure := c.m.Live()
	c.agreeStore(when, live, unsure)
	c.agreeKernel(when, live, unsure)
	c.consistent()
	for _, w := range c.workers {
		for i, p := range w.pods {
			if p.added == nil || (i+w.n)%4 > 0 { // a part of them is enough, each time
				continue
			}
			if !c.answers(p.ns, lab.SimpleGateway) {
				c.m.Fault(fmt.Sprintf("%s: %s (%s) does not reach the gateway: node %s", when, p.key, p.added.IP,
					c.sh("ip rule; ip route; ip route show table 28201; nft list table ip native_vmss")), p.key, p.added.IP.String())
			}
		}
	}
}

func (c *churn) agreeStore(when string, live map[string]netip.Addr, unsure []string) {
	others := map[netip.Addr]string{}
	for ip, v := range c.records() {
		if st := states[v[0]]; st == "leased" || st == "releasing" {
			others[ip] = st
		}
	}
	for key, ip := range live {
		if others[ip] != "leased" {
			c.m.Fault(fmt.Sprintf("LOST: %s: lease of %s, %s, is %q", when, key, ip, others[ip]), key, ip.String())
		}
		delete(others, ip)
	}
	if len(others) > len(unsure) {
		c.m.Fault(fmt.Sprintf("LEAK: %s: %v are held beside those of live pods, and only %v may hold one", when, others, unsure), unsure...)
	}
}

func (c *churn) agreeKernel(when string, live map[string]netip.Addr, unsure []string) {
	var routes []struct{ Dst, Dev string }
	if err := json.Unmarshal([]byte(c.sh("ip -j route show table main proto "+pathProtocol)), &routes); err != nil {
		c.t.Fatal(err)
	}
	by, links := map[string]string{}, c.podLinks()
	for _, r := range routes {
		by[r.Dst] = r.Dev
	}
	may := map[string]bool{}
	for _, key := range unsure {
		may[churnLink(key)] = true
	}
	for key, ip := range live {
		link := churnLink(key)
		if strings.Contains(key, churnForeign) {
			continue
		}
		if by[ip.String()] != link || !slices.Contains(links, link) {
			c.m.Fault(fmt.Sprintf("LOST: %s: link %s of %s, route of %s by %q", when, link, key, ip, by[ip.String()]), key, ip.String())
		}
		may[link] = true
	}
	for _, link := range links {
		if !may[link] {
			c.t.Errorf("LEAK: %s: link %s is no live pod's", when, link)
		}
	}
	for dst, dev := range by {
		if !may[dev] {
			c.t.Errorf("LEAK: %s: route of %s by %s is no live pod's", when, dst, dev)
		}
	}
}

// reboot gives the node another boot id. Without the namespaces everything goes that a machine loses; the store stays (a state
// directory on a disk) or goes with the rest.
func (c *churn) reboot(round int, survive bool) {
	c.t.Helper()
	c.ops["reboot"].Add(1)
	if !survive {
		c.neighboursRest()
		c.powerOff(round%8 == 3)
	}
	c.m.Reboot(survive)
	if err := c.Node.SetBootID(fmt.Sprintf("11111111-2222-3333-4444-%012d", round)); err != nil {
		c.t.Fatal(err)
	}
	c.cloud.settle() // somebody has to be the first
	if !survive {
		c.neighboursUp()
	}
}

func (c *churn) powerOff(keepStore bool) {
	var script strings.Builder
	for _, link := range c.podLinks() {
		fmt.Fprintf(&script, "ip link del %s 2>/dev/null || true\n", link) // its namespace may have taken it along
	}
	script.WriteString("nft flush ruleset\nip rule flush\nip rule add from all lookup main prio 32766\n" +
		"ip rule add from all lookup default prio 32767\nip route flush table 28201\nip route flush table 28299 2>/dev/null || true\n")
	if !keepStore {
		script.WriteString("rm -rf " + stateDir + "\n")
	}
	for _, w := range c.workers {
		for _, p := range w.pods {
			p.lost()
		}
	}
	c.sh(script.String())
	if !pathEventually(patience, func() bool { return len(c.podLinks()) == 0 }) {
		c.t.Fatalf("links outlive their namespaces: %v", c.podLinks())
	}
}

// end deletes what lives and then wants every address of the pool to be given out at once: none was lost on the way.
func (c *churn) end() {
	c.t.Helper()
	c.cloud.all()
	for _, w := range c.workers {
		for _, p := range w.pods {
			w.del(p)
		}
	}
	c.agree("after the last DEL")
	want := churnPool + churnGrowth - 2 // the neighbours' own
	deadline := time.Now().Add(churnCool + 2*time.Minute)
	var all []*churnPod
	for _, w := range c.workers {
		all = append(all, w.pods[:want/churnWorkers+1]...)
	}
	all = all[:want]
	pathMany(want, func(i int) {
		p := all[i]
		for w := p.w; p.added == nil && !c.t.Failed(); time.Sleep(100 * time.Millisecond) {
			if w.add(p, netip.Addr{}); p.added == nil && time.Now().After(deadline) {
				c.m.Fault(fmt.Sprintf("LEAK: %s gets no address of %d although nobody else has one", p.key, want), p.key)
			}
		}
	})
	pathMany(churnWorkers, func(n int) { // a worker's choices are its own
		for _, p := range all {
			if p.w.n == n {
				p.w.del(p)
			}
		}
	})
}

// lost is a pod whose machine went down.
func (p *churnPod) lost() {
	if p.ns != nil {
		if err := p.ns.Close(); err != nil && !os.IsNotExist(err) {
			p.w.t.Error(err)
		}
	}
	p.ns, p.added, p.unsure, p.had = nil, nil, false, netip.Addr{}
}
