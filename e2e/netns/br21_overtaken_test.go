package netns

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	// An ADD is slowed by this much, and its DEL starts at each of these steps: 0 to 4 s.
	overtakenSlow  = 3 * time.Second
	overtakenStep  = 100 * time.Millisecond
	overtakenSteps = 41
)

// overtaken is one container whose DEL comes at some time of its ADD.
type overtaken struct {
	id   string
	pod  *lab.Namespace
	del  lab.Call
	at   time.Duration // the start of its DEL
	gone time.Duration // its namespace is deleted then; 0: never

	added, deleted     *answer
	addEnded, delEnded time.Time
}

// overtake starts all ADDs at once and each DEL at its time, and waits for all.
func (s *stage) overtake(all []*overtaken, add func(i int, o *overtaken) (binary string, c lab.Call)) {
	s.t.Helper()
	var wg sync.WaitGroup
	begin := time.Now()
	for i, o := range all {
		wg.Go(func() {
			o.added = s.runOf(add(i, o))
			o.addEnded = time.Now()
		})
		if o.gone > 0 {
			wg.Go(func() {
				time.Sleep(time.Until(begin.Add(o.gone)))
				if err := o.pod.Close(); err != nil {
					s.t.Error(err)
				}
			})
		}
		wg.Go(func() {
			time.Sleep(time.Until(begin.Add(o.at)))
			o.deleted = s.run(o.del)
			o.delEnded = time.Now()
		})
	}
	wg.Wait()
}

// everyStep is three containers for each start of a DEL: with the namespace, without, and with one that is deleted meanwhile.
func (s *stage) everyStep() (all []*overtaken) {
	s.t.Helper()
	for i := range overtakenSteps {
		for _, how := range []string{"with", "without", "deleted"} {
			o := &overtaken{id: fmt.Sprintf("%s%d", how, i), at: time.Duration(i) * overtakenStep}
			o.pod = s.Pod(s.t, o.id)
			o.del = s.call("DEL", o.id, o.pod)
			switch how {
			case "without":
				o.del.Netns = ""
			case "deleted":
				o.gone = o.at/2 + 50*time.Millisecond
			}
			all = append(all, o)
		}
	}
	return all
}

// wholeOrNothing wants of each container either everything or nothing, and nothing where the DEL ended last or the ADD failed.
func (s *stage) wholeOrNothing(all []*overtaken) {
	s.t.Helper()
	links, keys := s.podLinks(), s.pathKeys()
	routes := s.sh("ip route show table main proto " + pathProtocol)
	stand, failed, late := 0, 0, 0
	for _, o := range all {
		link := linkOf(o.id, "eth0")
		key := sha256.Sum256([]byte(network + "\x00" + o.id + "\x00eth0"))
		_, leased := keys[fmt.Sprintf("%x", key[:8])]
		has := []bool{slices.Contains(links, link), strings.Contains(routes, "dev "+link+" "), leased}
		if o.gone == 0 {
			has = append(has, strings.Contains(s.in(o.pod, "ip -o link"), "eth0"))
		}
		// The DEL came first, and the pod's namespace went after the ADD, with the link: such a lease waits for a DEL.
		died := o.gone > 0 && o.added.Exit == 0 && leased && !has[0] && !o.delEnded.After(o.addEnded)
		if slices.Contains(has, true) && slices.Contains(has, false) && !died {
			s.t.Errorf("%s: half is left: link, route, lease, the pod's link: %v (ADD: code %d %s)", o.id, has, o.added.Code, o.added.Msg)
		}
		// On a busy machine an ADD may take longer than a DEL waits: the runtime calls again, as lastDEL does.
		busy := o.deleted.Exit != 0 && o.deleted.Code == 11
		if o.deleted.Exit != 0 && !busy {
			s.t.Errorf("%s: DEL: code %d: %s", o.id, o.deleted.Code, o.deleted.Msg)
		}
		if busy {
			late++
		}
		if o.added.Exit != 0 {
			failed++
		}
		if !has[0] {
			continue
		}
		stand++
		if o.added.Exit != 0 {
			s.t.Errorf("%s stands though its ADD failed with %q", o.id, o.added.Msg)
		}
		if !busy && o.delEnded.After(o.addEnded) {
			s.t.Errorf("%s stands though its DEL ended %s after its ADD", o.id, o.delEnded.Sub(o.addEnded))
		}
	}
	s.t.Logf("of %d: %d stand, their DELs came first; %d ADDs failed, %d DELs gave up waiting", len(all), stand, failed, late)
	if late > len(all)/2 {
		s.t.Errorf("%d of %d DELs gave up waiting for their ADD", late, len(all))
	}
}

// lastDEL is what a runtime does at last for every one of them.
func (s *stage) lastDEL(all []*overtaken) {
	s.t.Helper()
	pathMany(len(all), func(i int) { s.run(all[i].del).ok() })
}

// BR-21: DEL overtakes an unfinished ADD.
func TestNetnsBR21_DEL_overtakes_ADD(t *testing.T) {
	t.Parallel()
	t.Run("while_metadata_is_slow", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(3*overtakenSteps))
		s.ipam["lockTimeout"] = "30s"
		good := lab.DocumentHandler(lab.NetworkDocument(s.NICs...))
		s.MD.HandleFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(overtakenSlow)
			good.ServeHTTP(w, r)
		})
		before := s.snapshot()
		all := s.everyStep()
		s.overtake(all, func(_ int, o *overtaken) (string, lab.Call) { return "native-vmss", s.call("ADD", o.id, o.pod) })
		s.wholeOrNothing(all)
		s.lastDEL(all)
		s.clean("after the last DEL")
		s.onlyNodeWide(before)
		s.consistent()
	})

	// Each ADD sleeps at another of its steps; those inside a transaction of the store would make all others wait.
	t.Run("at_every_step_of_the_ADD", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(3*overtakenSteps+1))
		s.ipam["lockTimeout"] = "30s"
		s.settle()
		points := s.hits(s.call("ADD", "trace", s.Pod(t, "trace")))
		s.del("trace", nil).ok()
		points = slices.DeleteFunc(points, func(p string) bool { return strings.HasPrefix(p, "boltfile.") })
		before := s.snapshot()
		all := s.everyStep()
		s.overtake(all, func(i int, o *overtaken) (string, lab.Call) {
			return pathFailing, s.call("ADD", o.id, o.pod, at(points[i%len(points)], overtakenSlow.String()))
		})
		s.wholeOrNothing(all)
		s.lastDEL(all)
		s.noLeak(before)
		s.consistent()
	})
}
