package fakeazure

import (
	"maps"
	"slices"
	"strconv"
	"time"
)

// maxLog bounds the requests that are remembered per VM; counters go on.
const maxLog = 10_000

// Services that keep books.
const (
	ServiceIMDS       = "imds"
	ServiceWireserver = "wireserver"
	ServiceDNS        = "dns"
)

// Request is one line of a log.
type Request struct {
	Time    time.Time `json:"time"` // arrival
	Service string    `json:"service"`
	VM      string    `json:"vm"` // "": the source belongs to no primary NIC
	Source  string    `json:"source"`
	// Line is the method and the URL, or the type and the name of a DNS question.
	Line      string `json:"line"`
	UserAgent string `json:"userAgent,omitempty"`
	// Outcome is the status of an answer, "cut" for a connection that was closed without one, a DNS code; "" while it isn't decided.
	Outcome string `json:"outcome"`
	// Took is the time until the answer was sent as a whole, or until the client went away.
	Took Duration `json:"took"`
}

// books are the logs and counters, by VM; "" has those of strangers.
type books struct {
	log      map[string][]*Request
	counters map[string]map[string]int
}

// open notes a request at its arrival, so that one that never ends is seen as well.
func (c *Cloud) open(r Request) *Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Time = time.Now()
	if c.books.log == nil {
		c.books = books{log: map[string][]*Request{}, counters: map[string]map[string]int{}}
	}
	log := append(c.books.log[r.VM], &r)
	if len(log) > maxLog {
		log = slices.Clone(log[maxLog/2:])
	}
	c.books.log[r.VM] = log
	return &r
}

// close notes how a request ended.
func (c *Cloud) close(r *Request, outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Outcome = outcome
	r.Took = Duration(time.Since(r.Time))
	if c.books.counters[r.VM] == nil {
		c.books.counters[r.VM] = map[string]int{}
	}
	c.books.counters[r.VM][r.Service+" "+outcome]++
}

// closeStatus is close for an HTTP status; 0 is a cut connection.
func (c *Cloud) closeStatus(r *Request, status int) {
	if status == 0 {
		c.close(r, "cut")
		return
	}
	c.close(r, strconv.Itoa(status))
}

// Requests returns a VM's log in order of arrival; "" has the strangers'.
func (c *Cloud) Requests(vmName string) []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]Request, 0, len(c.books.log[vmName]))
	for _, r := range c.books.log[vmName] {
		list = append(list, *r)
	}
	return list
}

// Counters returns VM -> "service outcome" -> number of answers, for example "vmss_0" -> "imds 200" -> 3.
func (c *Cloud) Counters() map[string]map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]map[string]int{}
	for name, counters := range c.books.counters {
		all[name] = maps.Clone(counters)
	}
	return all
}

// ForgetRequests empties all logs and counters.
func (c *Cloud) ForgetRequests() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.books = books{log: map[string][]*Request{}, counters: map[string]map[string]int{}}
}
