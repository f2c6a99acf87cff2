package main

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/pkg/node"
)

// Nothing is claimed that wasn't done, and a loop says only what is new.
func TestPrinter(t *testing.T) {
	dead := node.Collectable{Addr: netip.MustParseAddr("10.20.0.10"), Pod: "team-a/web-0", New: true, In: time.Minute}
	older := node.Collectable{Addr: netip.MustParseAddr("10.20.0.11"), In: 1500 * time.Millisecond}
	changed := pass{Repaired: node.Repaired{Changed: []string{"a", "b"}, Pods: 2}}
	tests := []struct {
		name   string
		did    pass
		failed error
		loop   bool
		want   string
	}{
		{"nothing", pass{Repaired: node.Repaired{Pods: 2}}, nil, false, "nothing to do (pods looked at: 2)\n"},
		{"nothing, each pass", pass{}, nil, true, ""},
		{"failed", pass{}, errors.New("x"), false, ""},
		{"changed", changed, nil, false, "changed: a\nchanged: b\n"},
		{"changed, then failed", changed, errors.New("x"), false, "changed: a\nchanged: b\n"},
		{"collected", pass{Swept: node.Swept{Collected: []node.Collectable{dead}}}, nil, true, "collected: 10.20.0.10 of team-a/web-0\n"},
		{
			"waiting",
			pass{Swept: node.Swept{Waiting: []node.Collectable{dead, older}}},
			nil, false,
			"waiting: 10.20.0.10 of team-a/web-0 has no link, collected if still so in 1m0s\n" +
				"waiting: 10.20.0.11 of - has no link, collected if still so in 2s\n",
		},
		{
			"waiting, each pass",
			pass{Swept: node.Swept{Waiting: []node.Collectable{dead, older}}},
			nil, true,
			"waiting: 10.20.0.10 of team-a/web-0 has no link, collected if still so in 1m0s\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			p := printer{w: &out, loop: tt.loop}
			if err := p.print(tt.did, tt.failed); err != nil || out.String() != tt.want {
				t.Errorf("%v, %q, want %q", err, out.String(), tt.want)
			}
		})
	}
	t.Run("a skipped NIC is said once", func(t *testing.T) {
		var out bytes.Buffer
		p := printer{w: &out, loop: true}
		for range 2 {
			if err := p.print(pass{skipped: []string{"eth1"}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != "skipped: eth1\n" {
			t.Errorf("%q", out.String())
		}
	})
	t.Run("json", func(t *testing.T) {
		var out bytes.Buffer
		p := printer{w: &out, json: true}
		const want = `{"changed":["a","b"],"pods":2,"collected":[],"waiting":[],"skipped":[],"error":"x"}` + "\n"
		if err := p.print(changed, errors.New("x")); err != nil || out.String() != want {
			t.Errorf("%v, %s", err, out.String())
		}
	})
}

// Each line has our name, and none comes twice.
func TestPrintError(t *testing.T) {
	var out bytes.Buffer
	same := errors.New("store unusable")
	printError(&out, errors.Join(same, errors.Join(errors.New("other"), same)))
	if out.String() != "vmssctl: store unusable\nvmssctl: other\n" {
		t.Errorf("%q", out.String())
	}
}
