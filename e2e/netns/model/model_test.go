package model

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

const rest = 10 * time.Second

var (
	x       = netip.MustParseAddr("10.20.0.10")
	gateway = netip.MustParseAddr("10.20.0.1")
	none    netip.Addr
)

// history is what the tests tell a model.
type history struct {
	*Model
	clock  time.Duration
	faults []string
}

func newHistory() *history {
	h := &history{clock: time.Second}
	h.Model = New(rest, func() time.Duration { return h.clock }, func(s string) { h.faults = append(h.faults, s) }, gateway)
	return h
}

func (h *history) add(key string, want, got netip.Addr) { h.Added(h.Add(key, want), got) }

func (h *history) killedAdd(key string, want netip.Addr) { h.NotAdded(h.Add(key, want), true, "") }

func (h *history) del(key string) {
	h.Release("DEL", key)
	h.clock += time.Second
	h.Released("DEL", key)
}

// A model that sees nothing would make every churn green: each invariant is broken once, and each exception is used once.
func TestModel_faults(t *testing.T) {
	tests := []struct {
		name, fault string // empty: none
		do          func(h *history)
	}{
		{"two_live_pods", "DUPLICATE", func(h *history) { h.add("a", none, x); h.add("b", none, x) }},
		{"two_addresses", "SECOND", func(h *history) { h.add("a", none, x); h.add("a", none, x.Next()) }},
		{"gateway", "NOT FOR PODS", func(h *history) { h.add("a", none, gateway) }},
		{"another_than_asked_for", "asked for", func(h *history) { h.add("a", x, x.Next()) }},
		{"inside_the_cool-down", "EARLY", func(h *history) { h.add("a", none, x); h.del("a"); h.clock += 8 * time.Second; h.add("b", none, x) }},
		{"asked_for_by_another_inside_the_cool-down", "EARLY", func(h *history) { h.add("a", none, x); h.del("a"); h.add("b", x, x) }},
		{"its_own_without_asking", "EARLY", func(h *history) { h.add("a", none, x); h.del("a"); h.add("a", none, x) }},
		{"counted_from_the_first_DEL", "EARLY", func(h *history) {
			h.add("a", none, x)
			h.Release("DEL", "a") // killed
			h.clock += rest - time.Second/2
			h.add("b", none, x)
		}},
		{"after_a_reboot_that_pods_survived", "EARLY", func(h *history) {
			h.add("a", none, x)
			h.del("a")
			h.clock += rest
			h.Reboot(true)
			h.add("b", none, x)
		}},
		{"a_survivor_of_a_reboot", "DUPLICATE", func(h *history) { h.add("a", none, x); h.Reboot(true); h.add("b", none, x) }},
		{"withdrawn", "WITHDRAWN", func(h *history) { h.Withdrawn(x); h.clock++; h.add("a", none, x) }},

		{"after_the_cool-down", "", func(h *history) { h.add("a", none, x); h.del("a"); h.clock += rest; h.add("b", none, x) }},
		{"its_own_when_it_asks", "", func(h *history) { h.add("a", none, x); h.del("a"); h.add("a", x, x) }},
		{"its_own_after_a_killed_ask", "", func(h *history) {
			h.add("a", none, x)
			h.del("a")
			h.killedAdd("a", x)
			h.add("a", none, x)
		}},
		{"after_a_reboot_without_pods", "", func(h *history) { h.add("a", none, x); h.del("a"); h.Reboot(false); h.add("b", none, x) }},
		{"listed_again", "", func(h *history) { h.Withdrawn(x); h.Listed(x); h.clock++; h.add("a", none, x) }},
		{"withdrawn_while_the_ADD_ran", "", func(h *history) { op := h.Add("a", none); h.Withdrawn(x); h.Added(op, x) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHistory()
			tt.do(h)
			if tt.fault == "" && len(h.faults) > 0 || tt.fault != "" && (len(h.faults) != 1 || !strings.HasPrefix(h.faults[0], tt.fault) && !strings.Contains(h.faults[0], tt.fault)) {
				t.Errorf("faults %q, want %q", h.faults, tt.fault)
			}
		})
	}
}

// Whoever reads a red run needs the operations that led there, those of both pods.
func TestModel_faults_tell_the_last_operations(t *testing.T) {
	h := newHistory()
	h.add("first", none, x)
	h.add("second", none, x)
	for _, want := range []string{"last operations of first", "last operations of second", "last operations of " + x.String(), "given to first"} {
		if !strings.Contains(strings.Join(h.faults, ""), want) {
			t.Errorf("%q lacks %q", h.faults, want)
		}
	}
}

// What a killed operation did is not known, and a DEL that succeeded ends all doubt.
func TestModel_Live(t *testing.T) {
	h := newHistory()
	h.add("live", none, x)
	h.killedAdd("killed", none)
	live, unsure := h.Live()
	if len(live) != 1 || live["live"] != x || len(unsure) != 1 || unsure[0] != "killed" {
		t.Errorf("live %v, unsure %v", live, unsure)
	}
	h.del("killed")
	h.del("live")
	if live, unsure := h.Live(); len(live)+len(unsure) > 0 {
		t.Errorf("live %v, unsure %v after the DELs", live, unsure)
	}
}
