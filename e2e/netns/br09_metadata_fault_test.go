package netns

import (
	"fmt"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// statedDeadline is the plugin's own for ADD (pkg/node), and what a busy machine adds to it.
const statedDeadline = 30*time.Second + 5*time.Second

// reply is one scripted answer; the zero value is the good document.
type reply struct {
	code   int
	header [2]string
	body   string
	after  time.Duration
}

// scripted answers by the list, its last entry for ever.
func (s *stage) scripted(list ...reply) {
	good := lab.DocumentHandler(lab.NetworkDocument(s.NICs...))
	var n atomic.Int32
	s.MD.HandleFunc(func(w http.ResponseWriter, r *http.Request) {
		i := min(int(n.Add(1)), len(list)) - 1
		a := list[i]
		time.Sleep(a.after)
		if a.header[0] != "" {
			w.Header().Set(a.header[0], a.header[1])
		}
		if a.code == 0 {
			good.ServeHTTP(w, r)
			return
		}
		http.Error(w, a.body, a.code)
	})
}

func (s *stage) gaps() []time.Duration {
	var out []time.Duration
	reqs := s.MD.Requests()
	for i := 1; i < len(reqs); i++ {
		out = append(out, reqs[i].Time.Sub(reqs[i-1].Time))
	}
	return out
}

// BR-09: the service fails for a while: the pod waits for it, politely.
func TestNetnsBR09_passing_fault(t *testing.T) {
	t.Parallel()
	good := reply{}
	each(t, map[string]struct {
		script   []reply
		leastGap time.Duration
	}{
		"1_gone_is_not_final":                   {[]reply{{code: 410}, {code: 410}, good}, 50 * time.Millisecond},
		"2_retry_after_is_waited_for":           {[]reply{{code: 429, header: [2]string{"Retry-After", "2"}}, good}, 2 * time.Second},
		"4_one_server_error":                    {[]reply{{code: 500}, good}, 50 * time.Millisecond},
		"6_not_found_once_is_not_final":         {[]reply{{code: 404}, good}, 50 * time.Millisecond},
		"2_retry_after_as_a_date_is_understood": {[]reply{{code: 429, header: [2]string{"Retry-After", "Thu, 01 Jan 1970 00:00:00 GMT"}}, good}, 50 * time.Millisecond},
	}, func(t *testing.T, c struct {
		script   []reply
		leastGap time.Duration
	},
	) {
		s := newStage(t, lab.SimpleOptions{})
		s.scripted(c.script...)
		p := s.Pod(t, "p1")
		s.reaches(p, s.add("c1", p).ok().IP)
		gaps := s.gaps()
		if len(gaps) != len(c.script)-1 {
			t.Errorf("%d requests, want %d", len(gaps)+1, len(c.script))
		}
		for _, g := range gaps {
			if g < c.leastGap {
				t.Errorf("next request after %v, want at least %v (all gaps %v)", g, c.leastGap, gaps)
			}
		}
	})
}

// stubborn is a service that never gives a document.
type stubborn struct {
	set   func(s *stage)
	words []string
	// most is how long ADD may take.
	most time.Duration
	// requests is how many there may be, 0: any number.
	requests int
}

func stubbornServices() map[string]stubborn {
	always := func(r reply) func(*stage) { return func(s *stage) { s.scripted(r) } }
	return map[string]stubborn{
		"3_throttled_for_ever": {always(reply{code: 429}), []string{"429"}, statedDeadline, 0},
		"5_unsupported_api_version_ends_at_once": {
			always(reply{code: 400, body: `{"error":"Bad request: unsupported api-version"}`}), []string{"400", "api-version"}, 5 * time.Second, 2,
		},
		"7_answer_after_8_seconds": {always(reply{after: 8 * time.Second}), []string{"no complete answer"}, statedDeadline, 0},
		"8_one_byte_per_second": {func(s *stage) {
			s.MD.HandleFunc(func(w http.ResponseWriter, r *http.Request) {
				for range 60 {
					if _, err := w.Write([]byte(" ")); err != nil {
						return
					}
					w.(http.Flusher).Flush()
					select {
					case <-time.After(time.Second):
					case <-r.Context().Done():
						return
					}
				}
			})
		}, []string{"no complete answer"}, statedDeadline, 0},
		"9_connection_refused": {func(s *stage) {
			s.ipam["metadataURL"] = "http://169.254.169.254:81"
		}, []string{"refused"}, statedDeadline, 0},
		"10_redirect_is_not_followed": {func(s *stage) {
			s.scripted(reply{code: 302, header: [2]string{"Location", "http://203.0.113.10/metadata/instance?api-version=2021-02-01"}})
		}, []string{"302", "not followed"}, statedDeadline, 1},
	}
}

// BR-09: the service stays bad and no address is known: code 11 before the stated deadline, and the reason.
func TestNetnsBR09_lasting_fault_on_a_new_node(t *testing.T) {
	t.Parallel()
	each(t, stubbornServices(), func(t *testing.T, c stubborn) {
		s := newStage(t, lab.SimpleOptions{})
		elsewhere := s.trap()
		c.set(s)
		before := s.snapshot()
		a := s.add("c1", s.Pod(t, "p1")).fails(11, c.words...)
		if a.Took > c.most {
			t.Errorf("ADD took %v, want at most %v", a.Took, c.most)
		}
		reqs := len(s.MD.Requests())
		if c.requests > 0 && reqs != c.requests {
			t.Errorf("%d requests, want %d", reqs, c.requests)
		}
		// 5 requests per second are allowed to the whole machine: back-off stays far below.
		if float64(reqs) > 2+a.Took.Seconds() {
			t.Errorf("%d requests in %v: no back-off", reqs, a.Took)
		}
		if n := elsewhere.Load(); n > 0 {
			t.Errorf("%d requests went to another host", n)
		}
		s.del("c1", nil).ok()
		s.noLeakOnNewNode(before)
	})
}

// BR-09: the service is bad and the store knows free addresses: pods start, soon.
func TestNetnsBR09_lasting_fault_with_known_addresses(t *testing.T) {
	t.Parallel()
	each(t, stubbornServices(), func(t *testing.T, c stubborn) {
		s := newStage(t, lab.SimpleOptions{})
		s.ipam["refresh"] = "1s"
		s.settle()
		before := s.snapshot()
		time.Sleep(6 * time.Second) // the snapshot is old, and so is the last question
		c.set(s)
		s.MD.Forget()
		p1, p2 := s.Pod(t, "p1"), s.Pod(t, "p2")
		one := s.add("c1", p1).ok()
		two := s.add("c2", p2).ok()
		for _, a := range []*answer{one, two} {
			if a.Took > 5*time.Second {
				t.Errorf("ADD took %v with free addresses at hand", a.Took)
			}
		}
		s.reaches(p1, one.IP)
		s.del("c1", p1).ok()
		s.del("c2", p2).ok()
		s.noLeak(before)
	})
}

// trap is another host that counts who calls.
func (s *stage) trap() *atomic.Int32 {
	s.t.Helper()
	n := &atomic.Int32{}
	l, err := s.GW.ListenTCP(netip.AddrPortFrom(lab.SimpleInternet, 80))
	if err != nil {
		s.t.Fatal(err)
	}
	s.Defer(l.Close)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			c.Close()
		}
	}()
	return n
}
