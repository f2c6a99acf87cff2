package node

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/native-vmss/native-vmss/internal/boot"
	"github.com/native-vmss/native-vmss/pkg/allocator"
)

// oneGrant is an IPAM that gives the same grant every time and counts releases.
type oneGrant struct {
	Addresses
	grant    Grant
	released int
}

func (o *oneGrant) Acquire(context.Context, Attachment) (Grant, error) { return o.grant, nil }

func (o *oneGrant) Release(ctx context.Context, _ Key, teardown Teardown) error {
	o.released++
	return errors.Join(ctx.Err(), teardown(ctx, Grant{}))
}

func TestNetnsNode_Reserve(t *testing.T) {
	tests := []struct {
		name     string
		grant    Grant
		want     string // "" for an error
		released int
	}{
		{"in the subnet", Grant{Addr: addrs("10.20.0.10")[0]}, "10.20.0.10/24", 0},
		{"in no subnet: given back", Grant{Addr: addrs("10.40.0.10")[0]}, "", 1},
		{"in no subnet, but older than this ADD", Grant{Addr: addrs("10.40.0.10")[0], Existing: true}, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := netnsNode(t, minimal())
			n.store = allocator.Open(allocator.Options{
				Dir: n.conf.IPAM.StateDir, BootID: "boot-1", Now: boot.Clock,
				Kernel: func(context.Context) (allocator.Observed, error) { return allocator.Observed{}, nil },
			})
			leaseFor(t, n, "net1") // stores a snapshot, so that metadata isn't asked
			raw, err := json.Marshal(record{NICs: []nicFact{{Link: "eth0", Subnets: prefixes("10.20.0.0/24")}}})
			if err != nil {
				t.Fatal(err)
			}
			if err := n.store.PutNode(t.Context(), raw); err != nil {
				t.Fatal(err)
			}
			from := &oneGrant{grant: tt.grant}
			n.addrs = from
			r, err := n.Reserve(t.Context(), Attachment{Key: Key{"net1", "c2", "eth0"}})
			if tt.want == "" && !errors.Is(err, ErrNoMetadata) || tt.want != "" && (err != nil || r.Addr.String() != tt.want) {
				t.Errorf("Reserve = %v, %v", r, err)
			}
			if from.released != tt.released {
				t.Errorf("released %d times, want %d", from.released, tt.released)
			}
		})
	}
}
