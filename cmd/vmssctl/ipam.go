package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/native-vmss/native-vmss/internal/boot"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/node"
)

func ipamCommand(s *settings) *cobra.Command {
	cmd := group("ipam", "see which address is whose")
	var output string
	var all bool
	list := &cobra.Command{
		Use:   "list",
		Short: "list addresses in use, resting or blocked, and their pods",
		Long: "list shows each address with its state and for how long:\n\n" +
			"  leased      a pod has it\n" +
			"  releasing   its pod's end is under way; DEL, GC or repair ends it\n" +
			"  cooling     its pod is gone; free after ipam.cooldown\n" +
			"  blocked     not handed out: on-host-link: 'vmssctl node prepare --force' takes it off the NIC's link;\n" +
			"              used-by-other: a route or link of somebody else has it, 'ip route get' tells which\n" +
			"  free        with -a\n" +
			"  …,absent    metadata doesn't list it for a NIC of this node, or wasn't asked since the store was rebuilt\n\n" +
			"MARK is what the pod's packets carry inside markMask.\n\n" +
			"A '-' is what isn't known: a store that was rebuilt from the kernel knows a pod by its link's mark alone.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output: %q is neither table nor json", output)
			}
			leases, marks, err := readLeases(cmd.Context(), s)
			if err != nil {
				return err
			}
			rows := rowsOf(leases, marks, all, boot.Clock())
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), rows)
			}
			if len(rows) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "no address in use (%d known: -a shows them)\n", len(leases))
			}
			return printTable(cmd.OutOrStdout(), rows)
		},
	}
	list.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	list.Flags().BoolVarP(&all, "all", "a", false, "free addresses too")
	cmd.AddCommand(list)
	return cmd
}

const storeFile = "ipam.db"

// openStanding is for what only reads: on a node where no ADD has run there is no store, and looking must not make one.
func (s *settings) openStanding() (*node.Node, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	conf, err := s.configuration()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(conf.IPAM.StateDir, storeFile)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) { // a link to nothing is something in the way
		return nil, fmt.Errorf("no store at %s: no pod was added here since the machine started, or the file was removed "+
			"('vmssctl node repair' rebuilds it from the kernel)", path)
	}
	return node.Open(conf, nil, s.logger())
}

func readLeases(ctx context.Context, s *settings) (leases []allocator.Lease, marks map[netip.Addr]uint32, err error) {
	n, err := s.openStanding()
	if err != nil {
		return nil, nil, err
	}
	defer n.Close()
	if leases, err = n.Leases(ctx); err != nil {
		return nil, nil, err
	}
	marks, err = n.Marks(ctx)
	return leases, marks, err
}

// row is one address as it is shown; the names are the field's usual ones, and JSON's keys are part of the interface.
type row struct {
	Address     string `json:"address"`
	State       string `json:"state"`
	Blocked     string `json:"blocked,omitempty"`
	Present     bool   `json:"present"`
	NIC         string `json:"nic,omitempty"` // a rebuilt store knows it with metadata's next answer
	Network     string `json:"network,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Pod         string `json:"pod,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifname,omitempty"`
	Link        string `json:"link,omitempty"`
	Generation  uint64 `json:"generation,omitempty"`
	Mark        string `json:"mark,omitempty"` // of the pod's packets, inside markMask
	// ForSeconds is how long the address has been in its state.
	ForSeconds int64 `json:"forSeconds"`
}

func rowsOf(leases []allocator.Lease, marks map[netip.Addr]uint32, all bool, now time.Duration) []row {
	rows := make([]row, 0, len(leases))
	for _, l := range leases {
		if !all && l.State == allocator.Free && l.Blocked == allocator.NotBlocked {
			continue
		}
		r := row{
			Address: l.Addr.String(), State: l.State.String(), Present: l.Present,
			Network: l.Owner.NetworkName, ContainerID: l.Owner.ContainerID,
			IfName: l.Owner.IfName, Link: l.LinkName, Generation: l.Generation,
			ForSeconds: int64((now - l.Since) / time.Second),
		}
		if l.NIC != (allocator.MAC{}) {
			r.NIC = l.NIC.String()
		}
		if mark := marks[l.Addr]; mark != 0 {
			r.Mark = fmt.Sprintf("%#08x", mark)
		}
		r.nameOf(l.Owner)
		if l.Blocked != allocator.NotBlocked {
			r.Blocked = l.Blocked.String()
		}
		rows = append(rows, r)
	}
	return rows
}

// nameOf shows the pod's name. A store that was rebuilt has what the link's mark says, "namespace/name", where the caller said
// nothing "/", and "unknown" for another main plugin's pod.
func (r *row) nameOf(o allocator.Owner) {
	r.Namespace, r.Pod = o.Namespace, o.Pod
	if ns, pod, joined := strings.Cut(o.Pod, "/"); joined && o.Namespace == "" {
		r.Namespace, r.Pod = ns, pod
	}
	if o.Main == node.UnknownName && r.Pod == node.UnknownName {
		r.Pod = ""
	}
}

func printJSON(w io.Writer, rows []row) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(rows)
}

func printTable(w io.Writer, rows []row) error {
	const padding = 2
	t := tabwriter.NewWriter(w, 0, 0, padding, ' ', 0)
	fmt.Fprintln(t, "ADDRESS\tSTATE\tFOR\tNIC\tNAMESPACE\tPOD\tCONTAINER\tLINK\tMARK")
	for _, r := range rows {
		state := r.State
		if r.Blocked != "" {
			state = "blocked (" + r.Blocked + ")"
		}
		if !r.Present {
			state += ",absent"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Address, state, time.Duration(r.ForSeconds)*time.Second, dash(r.NIC),
			dash(r.Namespace), dash(r.Pod), dash(cut(r.ContainerID)), dash(r.Link), dash(r.Mark))
	}
	return t.Flush()
}

// dash shows a name that somebody else chose: without what would move a terminal's cursor or tear the table.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// cut shortens a container id as container tools do.
func cut(id string) string {
	const shown = 12
	if len(id) > shown {
		return id[:shown]
	}
	return id
}
