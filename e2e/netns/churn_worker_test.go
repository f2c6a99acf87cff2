package netns

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	churnMain    = "race/native-vmss"
	churnForeign = "/foreign" // in the key of a pod of another main plugin
	churnLives   = 4          // pods of one worker that live at once, about
)

// churnPod is a container id that comes and goes.
type churnPod struct {
	w       *churner
	id, key string
	ns      *lab.Namespace // made when it is needed first
	added   *answer        // nil: not live
	unsure  bool           // something of it was killed
	had     netip.Addr
}

// churner is one of those that do everything at once. Its pods are its own; the other workers only ask about them.
type churner struct {
	*churn
	*stage
	n    int
	rnd  *rand.Rand
	pods []*churnPod
}

func newChurner(c *churn, n int) *churner {
	w := &churner{churn: c, stage: c.stage, n: n, rnd: rand.New(rand.NewPCG(c.seed, uint64(n)))}
	if n%2 == 1 {
		w.stage = c.second
	}
	for _, id := range churnNames(n) {
		w.pods = append(w.pods, &churnPod{w: w, id: id, key: c.key(w.stage, id)})
	}
	return w
}

func churnNames(worker int) (ids []string) {
	for i := range churnIDs {
		ids = append(ids, fmt.Sprintf("w%dc%d", worker, i))
	}
	return ids
}

// key names an attachment of eth0.
func (c *churn) key(s *stage, id string) string { return s.top["name"].(string) + "/" + id }

// churnLink is the host link of a key, computed without the product.
func churnLink(key string) string {
	h := sha256.Sum256([]byte(strings.Replace(key, "/", "\x00", 1) + "\x00eth0"))
	return "veth" + hex.EncodeToString(h[:])[:11]
}

// turn is one thing that a worker does.
func (w *churner) turn() {
	p := w.pods[w.rnd.IntN(len(w.pods))]
	if w.rnd.IntN(3) > 0 { // often one that lives, or may live
		for _, other := range w.rnd.Perm(len(w.pods)) {
			if o := w.pods[other]; o.added != nil || o.unsure {
				p = o
				break
			}
		}
	}
	switch n := w.rnd.IntN(100); {
	case n < 5:
		w.collect()
	case n < 9:
		w.repair()
	case n < 12:
		w.status()
	case n < 16:
		w.foreign()
	case n < 20:
		w.rival()
	case p.unsure:
		w.settle1(p)
	case p.added != nil:
		w.alive(p)
	default:
		w.dead(p)
	}
}

// dead is what can happen to an id that has no pod.
func (w *churner) dead(p *churnPod) {
	living := 0
	for _, o := range w.pods {
		if o.added != nil {
			living++
		}
	}
	switch n := w.rnd.IntN(10); {
	case n == 0: // a DEL that comes much too late
		w.del(p)
	case n == 1 && p.had.IsValid():
		w.add(p, p.had)
	case n < 4: // what rests after somebody else
		w.add(p, w.m.Resting(p.key))
	case living < churnLives || n < 6:
		w.add(p, netip.Addr{})
	default:
		w.del(p)
	}
}

// alive is what can happen to a live pod.
func (w *churner) alive(p *churnPod) {
	switch n := w.rnd.IntN(20); {
	case n < 6:
		w.look(p)
	case n < 8:
		w.again(p)
	case n < 10:
		w.same(p)
	case n < 11:
		w.lateGC(p)
	case n < 14:
		w.snatch(p)
	default:
		w.del(p)
	}
}

// settle1 is what a runtime does about an operation that was killed: again, or clean up.
func (w *churner) settle1(p *churnPod) {
	if w.rnd.IntN(3) == 0 {
		w.add(p, netip.Addr{})
	} else {
		w.del(p)
	}
}

// add runs one ADD of a pod that isn't live.
func (w *churner) add(p *churnPod, want netip.Addr) {
	if p.ns == nil {
		p.ns = w.Pod(w.stage.t, p.id)
	}
	call := w.call("ADD", p.id, p.ns)
	if want.IsValid() {
		withStdin(w.conf(func(top map[string]any) { top["runtimeConfig"] = map[string]any{"ips": []string{want.String()}} }))(&call)
	}
	op := w.m.Add(p.key, want)
	a := w.do(w.stage, churnMain, call)
	switch {
	case a == nil:
		w.m.NotAdded(op, true, "")
		p.unsure = true
	case a.Exit == 0:
		w.m.Added(op, a.IP)
		p.added, p.unsure, p.had = a, false, a.IP
	default:
		w.m.NotAdded(op, false, fmt.Sprintf("code %d: %s", a.Code, a.Msg))
		// 4: the interface of an ADD that was killed is there. 7: metadata doesn't list what was asked for.
		if a.Code != 11 && (a.Code != 4 || !p.unsure) && (a.Code != 7 || !want.IsValid()) {
			w.m.Fault(fmt.Sprintf("ADD %s: code %d: %s", p.key, a.Code, a.Msg), p.key)
		}
	}
}

// again is an ADD of a pod that lives: refused, and the pod is none the worse.
func (w *churner) again(p *churnPod) {
	w.m.Note(p.key, "ADD of the live pod")
	if a := w.do(w.stage, churnMain, w.call("ADD", p.id, p.ns)); a != nil && a.Exit == 0 {
		w.m.Fault(fmt.Sprintf("ADD of the live pod %s succeeded with %s", p.key, a.IP), p.key)
	}
	w.look(p)
}

// same is a pod that goes, and comes back at once with the address that it had.
func (w *churner) same(p *churnPod) {
	w.del(p)
	w.add(p, p.had)
}

// del is DEL until it succeeds, with or without the namespace, and now and then once more.
func (w *churner) del(p *churnPod) {
	for n := 1 + w.rnd.IntN(5)/4; n > 0; n-- {
		ns := p.ns
		if w.rnd.IntN(3) == 0 {
			ns = nil
		}
		w.m.Release("DEL", p.key)
		w.until("DEL", p.key, w.call("DEL", p.id, ns))
		w.m.Released("DEL", p.key)
	}
	w.dropped(p)
}

// dropped wants nothing to be left in the pod, and makes it a new one for its next life now and then.
func (w *churner) dropped(p *churnPod) {
	p.added, p.unsure = nil, false
	if p.ns == nil {
		return
	}
	if out := w.in(p.ns, "ip -o link"); strings.Contains(out, "eth0") {
		w.m.Fault(fmt.Sprintf("LEAK: %s is deleted and its pod has %s", p.key, out), p.key)
	}
	if w.rnd.IntN(4) == 0 {
		if err := p.ns.Close(); err != nil {
			w.stage.t.Errorf("%s: %v", p.key, err)
		}
		p.ns = nil
	}
}

// until repeats what may be repeated until it has succeeded.
func (w *churner) until(what, key string, call lab.Call) {
	for try := 0; ; try++ {
		a := w.do(w.stage, churnMain, call)
		if a != nil && a.Exit == 0 {
			return
		}
		if a == nil {
			w.m.Note(key, what+" killed")
		} else if a.Code != 11 || try > 10 {
			w.m.Fault(fmt.Sprintf("%s %s: code %d: %s", what, key, a.Code, a.Msg), key)
			return
		}
	}
}

// snatch deletes a pod while another asks for its address, which is to rest first.
func (w *churner) snatch(p *churnPod) {
	thief := w.pods[w.rnd.IntN(len(w.pods))]
	ip := p.added.IP
	if thief.added != nil || thief.unsure {
		return
	}
	if thief.ns == nil { // not beside the DEL: a namespace is made by whoever needs it
		thief.ns = w.Pod(w.stage.t, thief.id)
	}
	late := time.Duration(w.rnd.Int64N(int64(100 * time.Millisecond)))
	w.m.Release("DEL", p.key)
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(late)
		w.add(thief, ip)
	})
	w.until("DEL", p.key, w.call("DEL", p.id, p.ns))
	w.m.Released("DEL", p.key)
	wg.Wait()
	w.dropped(p)
}

// look is what others see of a live pod: link and route, an answer of the gateway, CHECK's word.
func (w *churner) look(p *churnPod) {
	fault := func(format string, args ...any) {
		w.m.Fault("LOST: "+p.key+": "+fmt.Sprintf(format, args...), p.key, p.added.IP.String())
	}
	if out := w.sh("ip -4 route show " + p.added.IP.String()); !strings.Contains(out, "dev "+churnLink(p.key)) {
		fault("route of %s is %q", p.added.IP, out)
	}
	if !w.answers(p.ns, lab.SimpleGateway) {
		fault("%s does not reach the gateway: pod %s", p.added.IP, w.in(p.ns, "ip addr; ip route; ip neigh"))
	}
	call := w.call("CHECK", p.id, p.ns, withStdin(w.prev(p.added)))
	if a := w.do(w.stage, churnMain, call); a != nil && a.Exit != 0 && a.Code != 11 {
		fault("CHECK: code %d: %s", a.Code, a.Msg)
	}
}

// gcCall says that everybody of the network is alive but these.
func (w *churner) gcCall(dead ...*churnPod) lab.Call {
	valid := []map[string]string{}
	say := func(id string) { valid = append(valid, map[string]string{"containerID": id, "ifname": "eth0"}) }
	gone := map[string]bool{}
	for _, p := range dead {
		gone[p.id] = true
	}
	for other := w.n % 2; other < churnWorkers; other += 2 {
		say(fmt.Sprintf("foreign%d", other))
		for _, id := range churnNames(other) {
			if !gone[id] {
				say(id)
			}
		}
	}
	say("neighbour0")
	say("neighbour1")
	stdin := w.conf(func(top map[string]any) { top["cni.dev/valid-attachments"] = valid })
	return w.call("GC", "", nil, withStdin(stdin), without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"))
}

// collect lets GC find what nobody deleted: pods that are unsure, one that lives, and ids without a pod.
func (w *churner) collect() {
	var dead []*churnPod
	var keys []string
	live := 0
	for _, p := range w.pods {
		if p.added != nil {
			if live++; live > 1 {
				continue
			}
		}
		dead, keys = append(dead, p), append(keys, p.key)
	}
	w.m.Release("GC", keys...)
	w.until("GC", keys[0], w.gcCall(dead...))
	w.m.Released("GC", keys...)
	for _, p := range dead {
		if p.added != nil || p.unsure {
			w.dropped(p)
		}
	}
}

// lateGC is a GC that has seen a lease when it was held up: until its turn comes the pod goes, and comes again. The lease that
// it finds then is a younger one, and none of its business.
func (w *churner) lateGC(p *churnPod) {
	trace, err := os.CreateTemp(w.Dir, "late-*")
	if err != nil {
		w.stage.t.Errorf("%v", err)
		return
	}
	trace.Close()
	call := w.gcCall(p)
	withEnv("NVT_FAILPOINT=boltfile.lock=2s#3", "NVT_FAILPOINT_TRACE="+trace.Name())(&call)
	w.m.Release("GC", p.key)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, wait := w.Node.StartPlugin(ctx, program(w.stage.t, pathFailing), call)
	if !lateHas(cmd, trace.Name()) { // it wasn't held up where it should be: an ordinary GC
		w.m.Note(p.key, "GC is not late")
		w.judge(call, wait())
		w.del(p)
		return
	}
	w.ops["late GC"].Add(1)
	w.del(p)
	w.add(p, p.had)
	if a := w.judge(call, wait()); a.Exit != 0 && a.Code != 11 {
		w.m.Fault(fmt.Sprintf("late GC: code %d: %s", a.Code, a.Msg), p.key)
	}
	w.m.Note(p.key, "GC that lacks it has ended")
	if p.added != nil {
		w.look(p)
	}
}

// lateHas waits until a GC is held up, and tells whether that is at the container's lock, with the leases listed: where another
// process has ipam.lock the third lock is the wait for that one, and nothing is listed yet.
func lateHas(cmd *lab.Cmd, trace string) bool {
	if cmd.Process == nil {
		return false
	}
	pathEventually(patience, func() bool {
		b, err := os.ReadFile(trace)
		return err != nil || bytes.Count(b, []byte("boltfile.lock")) > 2
	})
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", cmd.Process.Pid))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && filepath.Base(to) == "containers.lock" {
			return true
		}
	}
	return false
}

// repair runs vmssctl node repair.
func (w *churner) repair() {
	w.ops["repair"].Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := w.Node.Command(ctx, program(w.stage.t, "race/vmssctl"), "--conf", w.confFile, "node", "repair")
	cmd.Env = append(os.Environ(), churnRace)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		w.stage.t.Errorf("repair: %v", err)
		return
	}
	begin := time.Now()
	o, killed := w.victims.watched(cmd, func() lab.Outcome { return lab.Outcome{Err: cmd.Wait(), Took: time.Since(begin)} })
	if o.Err != nil && !killed {
		w.stage.t.Errorf("repair: %v: %s", o.Err, out.String())
	}
}

// status is 0 as long as addresses are known, whatever metadata says.
func (w *churner) status() {
	call := w.call("STATUS", "", nil, without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"))
	if a := w.do(w.stage, churnMain, call); a != nil && a.Exit != 0 && a.Code != 11 {
		w.stage.t.Errorf("STATUS: code %d: %s", a.Code, a.Msg)
	}
}

// rival asks CHECK about somebody's pod, in whatever state it is, with an address that it never had.
func (w *churner) rival() {
	id := churnNames(w.rnd.IntN(churnWorkers/2)*2 + w.n%2)[w.rnd.IntN(churnIDs)]
	p := w.pods[0]
	if p.ns == nil {
		return
	}
	a := w.do(w.stage, churnMain, w.call("CHECK", id, p.ns, withStdin(w.conf(func(top map[string]any) {
		top["prevResult"] = map[string]any{
			"cniVersion": "1.1.0", "ips": []any{map[string]any{"address": "10.20.0.99/32", "interface": 0}},
			"interfaces": []any{map[string]any{"name": "eth0", "sandbox": p.ns.Path}},
		}
	}))))
	if a != nil && a.Exit == 0 {
		w.stage.t.Errorf("CHECK %s succeeded with an address that it never had", id)
	}
}

// foreign is a pod of another main plugin, which calls ipam-vmss.
func (w *churner) foreign() {
	id := fmt.Sprintf("foreign%d", w.n)
	key, ns := w.key(w.stage, id), filepath.Join("/run/netns", "none")
	op := w.m.Add(key, netip.Addr{})
	a := w.do(w.stage, "race/ipam-vmss", w.call("ADD", id, nil, withNetns(ns)))
	var res struct {
		IPs []struct{ Address netip.Prefix }
	}
	switch {
	case a == nil:
		w.m.NotAdded(op, true, "")
	case a.Exit != 0:
		w.m.NotAdded(op, false, string(a.Stdout))
	default:
		if err := json.Unmarshal(a.Stdout, &res); err != nil || len(res.IPs) != 1 {
			w.stage.t.Errorf("ipam-vmss ADD: %v: %s", err, a.Stdout)
			return
		}
		w.m.Added(op, res.IPs[0].Address.Addr())
	}
	time.Sleep(time.Duration(w.rnd.Int64N(int64(200 * time.Millisecond))))
	w.m.Release("DEL", key)
	for {
		a := w.do(w.stage, "race/ipam-vmss", w.call("DEL", id, nil, withNetns(ns)))
		if a != nil && a.Exit == 0 || w.stage.t.Failed() {
			break
		}
	}
	w.m.Released("DEL", key)
}
