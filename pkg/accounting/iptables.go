package accounting

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// planTries is how often a change is planned anew because somebody else changed the same rules after they were read.
const planTries = 8

// xtables is the iptables backend. It acts on the network namespace of the calling thread.
//
// It reads with one iptables-save and changes with one iptables-restore --noflush, which commits all or nothing. Nothing is locked
// in between: each change names what it was planned for (-N fails where the chain stands, -D where the rule is gone, -X where
// somebody refers to the chain), so a plan that another process has overtaken fails as a whole, and is made again.
type xtables struct {
	log  *slog.Logger
	tool *tool
}

var _ Backend = (*xtables)(nil)

// NewIPTables finds the binaries; ErrUnavailable where there are none. A nil logger discards.
func NewIPTables(log *slog.Logger) (Backend, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t, err := findTool("iptables", "iptables-nft", "iptables-legacy")
	if err != nil {
		return nil, err
	}
	return &xtables{log: log, tool: t}, nil
}

// Close has nothing to give back.
func (*xtables) Close() {}

// Apply makes the table as it should be. Rules that are as they should be are not touched, so their counters run on.
func (x *xtables) Apply(ctx context.Context, conf Config, subjects []Subject) (changed, doubted []string, err error) {
	if err := checkConfig(conf, subjects); err != nil {
		return nil, nil, err
	}
	other, carried, err := x.other(ctx)
	if err != nil {
		return nil, nil, err
	}
	err = x.tool.change(ctx, func(have table) *plan {
		p := planAll(have, carried, conf, subjects)
		changed, doubted = p.changed, p.doubted
		return p
	})
	if err != nil {
		return nil, nil, fmt.Errorf("set up iptables accounting: %w", err)
	}
	// What the other flavour counted up to now has been carried over; from here on it would count twice.
	if carried != nil {
		if err := other.drop(ctx); err != nil {
			return changed, doubted, err
		}
		changed = append(changed, fmt.Sprintf("rules of %s removed", other))
	}
	return changed, doubted, nil
}

// Start makes the rules of one pod. Those of another pod with that address go, and with them their values.
func (x *xtables) Start(ctx context.Context, conf Config, s Subject) ([]Sample, error) {
	if err := checkConfig(conf, []Subject{s}); err != nil {
		return nil, err
	}
	var missing bool
	var stands []Sample
	err := x.tool.change(ctx, func(have table) *plan {
		missing = !have.applied(conf)
		if missing {
			return nil
		}
		p := newPlan(have, nil)
		stands = p.subject(conf, s)
		return p
	})
	if err != nil {
		return nil, fmt.Errorf("count %s: %w", s.Addr, err)
	}
	if missing {
		return nil, ErrNotApplied
	}
	return stands, nil
}

// Stop takes the address's rules out of the packets' way and leaves their values readable, so that a caller that dies before it has
// them in its books finds them again. The next Apply without the address removes them, the next Start with another pod too.
func (x *xtables) Stop(ctx context.Context, s Subject) ([]Sample, error) {
	var last []Sample
	err := x.tool.change(ctx, func(have table) *plan {
		last = have.samplesOf(s)
		p := newPlan(have, nil)
		p.detach(s.Addr)
		return p
	})
	if err != nil && last != nil { // no packet comes any more, so these are the last values, wherever its rules stand
		x.log.Warn("rules of a pod that ended are left in place", "addr", s.Addr, "error", err)
		return last, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stop counting %s: %w", s.Addr, err)
	}
	return last, nil
}

// Read returns what the rules say; a rule that stands twice counts with both values. ErrNotApplied where nothing of ours stands.
func (x *xtables) Read(ctx context.Context) (Reading, error) {
	have, err := x.tool.save(ctx)
	if err != nil {
		return Reading{}, fmt.Errorf("read iptables counters: %w", err)
	}
	r := have.reading()
	if len(r.Node) == 0 { // its rules stand as long as anything does
		return Reading{}, ErrNotApplied
	}
	return r, nil
}

// Standing is the handle of the rule that names the configuration: whoever restores the whole table gives all rules others. Only the nft
// flavour has handles.
func (x *xtables) Standing(ctx context.Context) (string, error) {
	legacy, err := x.tool.isLegacy(ctx)
	if err != nil || legacy {
		return "", err
	}
	s, err := openNFTSockets()
	if err != nil {
		return "", err
	}
	defer s.close()
	rules, err := s.dump(ctx, unix.NFT_MSG_GETRULE, nftName(unix.NFTA_RULE_TABLE, "mangle"), nftName(unix.NFTA_RULE_CHAIN, chainConf))
	if err != nil || len(rules) == 0 {
		return "", err
	}
	return fmt.Sprintf("rule %d", number(attribute(rules[0], unix.NFTA_RULE_HANDLE))), nil
}

// Halt removes what leads to our chains.
func (x *xtables) Halt(ctx context.Context) error {
	err := x.tool.change(ctx, func(have table) *plan {
		p := newPlan(have, nil)
		p.hooks(nil)
		return p
	})
	if err != nil {
		return fmt.Errorf("stop counting: %w", err)
	}
	return nil
}

// Drop removes our rules from both flavours.
func (x *xtables) Drop(ctx context.Context) error {
	other, carried, err := x.other(ctx)
	if err != nil {
		return err
	}
	if carried != nil {
		if err := other.drop(ctx); err != nil {
			return err
		}
	}
	return x.tool.drop(ctx)
}

// change reads, thinks and writes, again where somebody else was faster. A nil or empty plan writes nothing.
func (t *tool) change(ctx context.Context, think func(have table) *plan) error {
	var err error
	for try := range planTries {
		var have table
		if have, err = t.save(ctx); err != nil {
			return err
		}
		p := think(have)
		if p == nil || len(p.lines) == 0 {
			return nil
		}
		if err = t.restore(ctx, p.text()); err == nil || isFinal(err) {
			return err
		}
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond << try) // two that plan at the same time fall out of step
	}
	return err
}

func (t *tool) drop(ctx context.Context) error {
	if err := t.change(ctx, planDrop); err != nil {
		return fmt.Errorf("remove rules of %s: %w", t, err)
	}
	return nil
}

// checkConfig refuses what the rules could not carry.
func checkConfig(conf Config, subjects []Subject) error {
	for _, c := range conf.Classes {
		if c.Name != clean(c.Name, maxClass) {
			return fmt.Errorf("class %q: not 1 to %d of a-z, 0-9, dot and dash", c.Name, maxClass)
		}
		for _, p := range c.Prefixes {
			if !p.Addr().Is4() {
				return fmt.Errorf("class %q: %s is not an IPv4 prefix", c.Name, p)
			}
		}
	}
	for _, nic := range conf.NICs {
		if !isLinkName(nic) {
			return fmt.Errorf("link name %q can't be in a rule", nic)
		}
	}
	for _, s := range subjects {
		if !s.Addr.Is4() {
			return fmt.Errorf("subject %s is not an IPv4 address", s.Addr)
		}
	}
	return nil
}

// isLinkName is for names that mean one link: a plus at the end is a wildcard, a dash in front an option.
func isLinkName(s string) bool {
	if s == "" || len(s) > 15 || s[0] == '-' || s[0] == '!' || s[len(s)-1] == '+' {
		return false
	}
	return !slices.ContainsFunc([]byte(s), func(c byte) bool { return c <= ' ' || c > '~' || c == '"' || c == '\'' || c == '\\' })
}

// short is a name for any text that needs no quoting.
func short(text string, digits int) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:digits]
}

func hexAddr(a netip.Addr) string { return fmt.Sprintf("%x", a.As4()) }
