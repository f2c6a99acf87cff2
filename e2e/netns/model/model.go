package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// trailLength is how many of the last operations of an attachment or an address a fault tells.
const trailLength = 12

// Model is safe for many callers.
type Model struct {
	coolDown time.Duration
	now      func() time.Duration
	fault    func(string)

	mu    sync.Mutex
	never map[netip.Addr]bool
	pods  map[string]*pod      // attachment -> what is known of it
	addrs map[netip.Addr]*addr // every address that was ever given or missed
	trail map[string][]string  // attachment or address -> its last operations
	early int                  // asks for an address that rests
}

type pod struct {
	addr  netip.Addr // zero: not live
	maybe bool       // an ADD or a release was killed: it may hold an address
	asked map[netip.Addr]bool
	// releasing from the beginning of a DEL to the end of one that succeeded.
	releasing bool
}

type addr struct {
	user  string        // the live pod; empty: none
	last  string        // who had it before
	rests bool          // freed is known
	freed time.Duration // the earliest moment at which the cool-down can have begun
	// absent from this time on by metadata's word, twice; zero: listed.
	absent time.Duration
}

// New makes a model without pods. Each fault is told once, with the last operations of those concerned.
func New(coolDown time.Duration, now func() time.Duration, fault func(string), never ...netip.Addr) *Model {
	m := &Model{
		coolDown: coolDown, now: now, fault: fault, never: map[netip.Addr]bool{},
		pods: map[string]*pod{}, addrs: map[netip.Addr]*addr{}, trail: map[string][]string{},
	}
	for _, a := range never {
		m.never[a] = true
	}
	return m
}

func (m *Model) pod(key string) *pod {
	p := m.pods[key]
	if p == nil {
		p = &pod{asked: map[netip.Addr]bool{}}
		m.pods[key] = p
	}
	return p
}

func (m *Model) address(a netip.Addr) *addr {
	r := m.addrs[a]
	if r == nil {
		r = &addr{}
		m.addrs[a] = r
	}
	return r
}

func (m *Model) note(subject, format string, args ...any) {
	line := fmt.Sprintf("%10.3fs ", m.now().Seconds()) + fmt.Sprintf(format, args...)
	list := append(m.trail[subject], line)
	m.trail[subject] = list[max(0, len(list)-trailLength):]
}

func (m *Model) wrong(subjects []string, format string, args ...any) {
	var b strings.Builder
	fmt.Fprintf(&b, format, args...)
	for _, s := range slices.Compact(slices.Sorted(slices.Values(subjects))) {
		if len(m.trail[s]) > 0 {
			fmt.Fprintf(&b, "\n  last operations of %s:\n    %s", s, strings.Join(m.trail[s], "\n    "))
		}
	}
	m.fault(b.String())
}

// Fault tells a fault that the caller saw, with the last operations of these attachments.
func (m *Model) Fault(text string, keys ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrong(keys, "%s", text)
}

// Note keeps an operation that changes nothing for the trail.
func (m *Model) Note(key, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note(key, "%s", text)
}

// Adding is an ADD that runs.
type Adding struct {
	key  string
	want netip.Addr
	at   time.Duration
}

// Add begins an ADD; want is the address that it asks for, if any.
func (m *Model) Add(key string, want netip.Addr) Adding {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note(key, "ADD begins, wants %v", want)
	if want.IsValid() {
		m.pod(key).asked[want] = true
	}
	return Adding{key, want, m.now()}
}

// Added ends an ADD that succeeded.
func (m *Model) Added(op Adding, got netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, p, a := m.now(), m.pod(op.key), m.address(got)
	concerned := []string{op.key, got.String(), a.user, a.last}
	m.note(op.key, "ADD begun at %.3fs got %s", op.at.Seconds(), got)
	m.note(got.String(), "given to %s by an ADD begun at %.3fs", op.key, op.at.Seconds())
	if m.never[got] {
		m.wrong(concerned, "NOT FOR PODS: %s was given to %s", got, op.key)
	}
	if op.want.IsValid() && got != op.want {
		m.wrong(concerned, "%s asked for %s and got %s", op.key, op.want, got)
	}
	if a.user != "" && a.user != op.key {
		m.wrong(concerned, "DUPLICATE: %s was given to %s while %s has it", got, op.key, a.user)
	}
	if p.addr.IsValid() {
		m.wrong(concerned, "SECOND: %s got %s while it is live with %s", op.key, got, p.addr)
	}
	// An ADD that was killed may have got the address long ago, before a reboot made all that is without a pod rest.
	its := p.maybe || a.last == op.key && (p.asked[got] || p.releasing)
	if a.user == "" && a.rests && !its && now < a.freed+m.coolDown {
		m.wrong(concerned, "EARLY: %s was given to %s %v after the DEL of %s began, cool-down %v", got, op.key, now-a.freed, a.last, m.coolDown)
	}
	if a.absent != 0 && a.absent < op.at && !p.maybe && a.last != op.key {
		m.wrong(concerned, "WITHDRAWN: %s was given to %s, metadata lacks it since %.3fs", got, op.key, a.absent.Seconds())
	}
	a.user, a.rests = op.key, false
	*p = pod{addr: got, asked: map[netip.Addr]bool{}}
}

// NotAdded ends an ADD that failed, or was killed and may have done anything.
func (m *Model) NotAdded(op Adding, killed bool, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.note(op.key, "ADD begun at %.3fs, killed %v: %s", op.at.Seconds(), killed, why); killed {
		m.pod(op.key).maybe = true
	}
	if a := m.addrs[op.want]; a != nil && a.rests && a.last != op.key && m.now() < a.freed+m.coolDown {
		m.early++
	}
}

// Refusals counts the failed ADDs that asked for an address that rested all the time.
func (m *Model) Refusals() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.early
}

// Release begins a DEL, or a GC that lacks these attachments.
func (m *Model) Release(by string, keys ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		p := m.pod(key)
		m.note(key, "%s begins", by)
		if p.addr.IsValid() {
			a := m.address(p.addr)
			a.user, a.last, a.rests, a.freed = "", key, true, m.now()
			m.note(p.addr.String(), "%s of %s begins", by, key)
		}
		p.releasing = p.releasing || p.addr.IsValid() || p.maybe
		p.addr = netip.Addr{}
	}
}

// Released ends one that succeeded.
func (m *Model) Released(by string, keys ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		m.note(key, "%s succeeded", by)
		m.pods[key] = &pod{asked: map[netip.Addr]bool{}}
	}
}

// Reboot begins another boot. Where the namespaces survived their pods live on, and whatever nobody holds rests from now on: it may
// have been in use a moment ago. Where they did not, all is over and nothing needs a rest.
func (m *Model) Reboot(survived bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ip, a := range m.addrs {
		m.note(ip.String(), "reboot, namespaces survived %v", survived)
		if !survived {
			a.user, a.last, a.rests = "", "", false
		} else if a.user == "" {
			a.rests, a.freed = true, m.now()
		}
	}
	if !survived {
		m.pods = map[string]*pod{}
	}
}

// Withdrawn says that metadata has lacked an address for long enough; Listed that it has it, or may have it again.
func (m *Model) Withdrawn(list ...netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ip := range list {
		m.address(ip).absent = m.now()
		m.note(ip.String(), "withdrawn")
	}
}

// Listed ends Withdrawn.
func (m *Model) Listed(list ...netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ip := range list {
		m.address(ip).absent = 0
		m.note(ip.String(), "listed")
	}
}

// Resting is an address that rests after another attachment; the one that was freed last.
func (m *Model) Resting(but string) (best netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ip, a := range m.addrs {
		if a.rests && a.last != but && (!best.IsValid() || m.addrs[best].freed < a.freed) {
			best = ip
		}
	}
	return best
}

// Live maps attachments to their addresses; unsure are those that may hold one.
func (m *Model) Live() (live map[string]netip.Addr, unsure []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	live = map[string]netip.Addr{}
	for key, p := range m.pods {
		if p.addr.IsValid() {
			live[key] = p.addr
		} else if p.maybe || p.releasing {
			unsure = append(unsure, key)
		}
	}
	return live, unsure
}
