package netns

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// churnVictims are the processes that run now.
type churnVictims struct {
	mu      sync.Mutex
	running []*churnVictim
	took    time.Duration // about how long one lives
	begun   int
}

type churnVictim struct {
	cmd    *lab.Cmd
	killed bool
}

func newChurnVictims() *churnVictims { return &churnVictims{took: 50 * time.Millisecond} }

// churnKilled is how many operations begin, on average, for one that is killed.
const churnKilled = 5

// hunt kills a process now and then, at a random time of its life, until stop.
func (v *churnVictims) hunt(rnd *rand.Rand, c *churn, stop <-chan struct{}) {
	next := 0
	for {
		v.mu.Lock()
		begun, took := v.begun, v.took
		v.mu.Unlock()
		wait := 5 * time.Millisecond
		if begun >= next {
			next = begun + 1 + rnd.IntN(2*churnKilled-1)
			wait = time.Duration(rnd.Int64N(int64(took) + 1))
		}
		select {
		case <-stop:
			return
		case <-time.After(wait):
		}
		if begun+2*churnKilled > next && wait != 5*time.Millisecond && v.kill(rnd) {
			c.ops["killed"].Add(1)
		}
	}
}

func (v *churnVictims) kill(rnd *rand.Rand) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.running) == 0 {
		return false
	}
	one := v.running[rnd.IntN(len(v.running))]
	one.killed = one.cmd.Process.Kill() == nil || one.killed
	return one.killed
}

// watched lets the hunter see a process for as long as it lives, and tells whether he hit it.
func (v *churnVictims) watched(cmd *lab.Cmd, wait func() lab.Outcome) (o lab.Outcome, killed bool) {
	if cmd.Process == nil {
		return wait(), false
	}
	one := &churnVictim{cmd: cmd}
	v.mu.Lock()
	v.running = append(v.running, one)
	v.begun++
	v.mu.Unlock()
	o = wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, r := range v.running {
		if r == one {
			v.running = append(v.running[:i:i], v.running[i+1:]...)
		}
	}
	v.took += (o.Took - v.took) / 8
	return o, one.killed && o.Err != nil
}

// churnRace: a race build waits a second before it ends, for reports of goroutines that are still at work.
const churnRace = "GORACE=atexit_sleep_ms=10"

// do runs one operation of a race build; nil when it was killed.
func (c *churn) do(s *stage, binary string, call lab.Call) *answer {
	name := call.Command
	if binary == "race/ipam-vmss" {
		name = "ipam-vmss"
	}
	c.ops[name].Add(1)
	withEnv(churnRace)(&call)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o, killed := c.victims.watched(c.Node.StartPlugin(ctx, program(c.t, binary), call))
	if bytes.Contains(o.Stderr, []byte("DATA RACE")) {
		c.t.Errorf("%s %s: %s", call.Command, call.ContainerID, o.Stderr)
	}
	if killed {
		return nil
	}
	if binary == "race/ipam-vmss" {
		return &answer{Outcome: o, stage: s, Command: call.Command} // its results have another form
	}
	return s.judge(call, o)
}
