package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"go4.org/netipx"

	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/pkg/routes"
	"github.com/native-vmss/native-vmss/plugins/internal/plugin"
)

// delegate gets addresses from another IPAM plugin, with our own environment and stdin, and only CNI_COMMAND changed.
type delegate struct {
	plugin string
	args   *skel.CmdArgs
	exec   *childExec
	result *current.Result // of the last ADD
}

var _ node.Addresses = (*delegate)(nil)

func newDelegate(plugin string, args *skel.CmdArgs) *delegate {
	return &delegate{plugin: plugin, args: args, exec: &childExec{}}
}

// Acquire runs ADD. A failed one is followed by a DEL, as the specification wants it.
func (d *delegate) Acquire(ctx context.Context, _ node.Attachment) (node.Grant, error) {
	path, err := d.find()
	if err != nil {
		return node.Grant{}, err
	}
	g, err := d.add(ctx, path)
	if err != nil {
		return g, withUndo(err, d.undo(ctx))
	}
	return g, nil
}

// undo runs DEL in a context of its own: the ADD's may be what ended.
func (d *delegate) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	return d.run(ctx, "DEL")
}

func (d *delegate) add(ctx context.Context, path string) (node.Grant, error) {
	out, err := invoke.ExecPluginWithResult(ctx, path, d.args.StdinData, d.env("ADD"), d.exec)
	if err != nil {
		return node.Grant{}, d.explain(ctx, "ADD", err)
	}
	d.result, err = plugin.Current(out)
	if err != nil {
		return node.Grant{}, d.unusable("result can't be read: %v", err)
	}
	addr, err := d.onlyAddress()
	if err != nil {
		return node.Grant{}, err
	}
	return node.Grant{Addr: addr, Generation: node.NoLease}, nil
}

func (d *delegate) onlyAddress() (netip.Addr, error) {
	if len(d.result.IPs) != 1 {
		return netip.Addr{}, d.unusable("result has %d addresses, a pod needs one", len(d.result.IPs))
	}
	ip := d.result.IPs[0]
	if ip == nil {
		return netip.Addr{}, d.unusable("result's address is null")
	}
	addr, ok := netipx.FromStdIP(ip.Address.IP)
	if !ok || !addr.Is4() {
		return netip.Addr{}, d.unusable("result's address %s is no IPv4 address", ip.Address.IP)
	}
	return addr, nil
}

// Reject gives the address back: only its own plugin could block it, so this ADD ends here.
func (d *delegate) Reject(ctx context.Context, _ node.Attachment, g node.Grant, holder routes.Use) error {
	return withUndo(fmt.Errorf("%w: %s from %s: %s", node.ErrAddressInUse, g.Addr, d.plugin, holder), d.undo(ctx))
}

// Release tears down first, so that the other plugin can't give the address to a new pod while traffic still flows.
func (d *delegate) Release(ctx context.Context, _ node.Key, teardown node.Teardown) error {
	if err := teardown(ctx, node.Grant{}); err != nil {
		return err
	}
	return d.run(ctx, "DEL")
}

// Check runs CHECK: the other plugin compares the address with prevResult itself.
func (d *delegate) Check(ctx context.Context, _ node.Attachment, _ netip.Addr) error {
	return d.run(ctx, "CHECK")
}

// Status runs STATUS.
func (d *delegate) Status(ctx context.Context) error { return d.run(ctx, "STATUS") }

// GC runs GC: the other plugin reads the list itself.
func (d *delegate) GC(ctx context.Context, _ []node.Key) error { return d.run(ctx, "GC") }

func (d *delegate) run(ctx context.Context, command string) error {
	path, err := d.find()
	if err != nil {
		return err
	}
	if err := invoke.ExecPluginWithoutResult(ctx, path, d.args.StdinData, d.env(command), d.exec); err != nil {
		return d.explain(ctx, command, err)
	}
	return nil
}

func (d *delegate) find() (string, error) {
	path, err := d.exec.FindInPath(d.plugin, strings.Split(d.args.Path, ":"))
	if err != nil {
		return "", types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("ipam.type: %v", err), "")
	}
	return path, nil
}

// env is ours with the command changed: the plugin's identity keys are the same.
func (d *delegate) env(command string) *invoke.DelegateArgs {
	return &invoke.DelegateArgs{Command: command}
}

// explain keeps a CNI error as the plugin gave it; anything else gets its last words, since the runtime drops our stderr. One
// that we killed because our own time was over did not fail: the runtime may try again.
func (d *delegate) explain(ctx context.Context, command string, err error) error {
	var e *types.Error
	if errors.As(err, &e) && e.Code != types.ErrInternal && e.Code != 0 {
		return e
	}
	words := strings.TrimSpace(d.exec.lastWords.String())
	if words != "" {
		words = ": " + words
	}
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("%s %s: no answer in time: %w%s", d.plugin, command, ended, words)
	}
	text := fmt.Sprintf("%s %s: %v", d.plugin, command, err)
	if !strings.Contains(text, words) {
		text += words
	}
	return types.NewError(delegateFailed, text, "")
}

func (d *delegate) unusable(format string, args ...any) error {
	return types.NewError(delegateFailed, d.plugin+": "+fmt.Sprintf(format, args...), "")
}

const (
	// delegateFailed is our code for an IPAM plugin that died without a CNI error, or whose answer can't be used.
	delegateFailed = 104
	undoTimeout    = 10 * time.Second
)
