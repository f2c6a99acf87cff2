package accounting

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// NFT counts in a table of its own. Its counters are named objects that belong to an address and stand as long as the node has
// it: the first pod with an address makes them, all later ones and every Stop only read. A deletion would make a process wait for the
// kernel's grace period when it closes its socket: 8 to 28 ms.
type NFT struct {
	log *slog.Logger
	*nftSockets
}

var _ Backend = (*NFT)(nil)

// NewNFTables opens nftables in the network namespace of the calling thread. A nil logger discards.
func NewNFTables(log *slog.Logger) (Backend, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s, err := openNFTSockets()
	if err != nil {
		return nil, err
	}
	return &NFT{log: log, nftSockets: s}, nil
}

// Close gives the sockets back.
func (n *NFT) Close() { n.close() }

// Start reads the counters of an address, and makes its objects where one is missing: by additions only.
func (n *NFT) Start(ctx context.Context, conf Config, s Subject) ([]Sample, error) {
	if !s.Addr.Is4() {
		return nil, fmt.Errorf("count %s: not an IPv4 address", s.Addr)
	}
	if stands, err := n.configured(ctx, conf); err != nil {
		return nil, err
	} else if !stands {
		return nil, ErrNotApplied
	}
	names := counterNames(conf, s.Addr.String())
	samples, err := n.samples(ctx, names[:1]) // a new address has none: one question tells
	if err == nil && len(samples) > 0 {
		var rest []Sample
		rest, err = n.samples(ctx, names[1:])
		samples = append(samples, rest...)
		sortSamples(samples)
	}
	if err != nil || len(samples) == len(names) {
		return samples, err
	}
	if err := n.flush(ctx, func(b *nftBatch) { b.subject(conf, s) }); errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w (%w)", ErrNotApplied, err) // it went in between
	} else if err != nil {
		return nil, fmt.Errorf("add counters of %s: %w", s.Addr, err)
	}
	n.log.Debug("counters added", "addr", s.Addr)
	samples, err = n.samples(ctx, names)
	if err == nil && len(samples) != len(names) {
		err = fmt.Errorf("%w: counters of %s went again", ErrNotApplied, s.Addr)
	}
	return samples, err
}

// Stop reads the counters that the rules of an address name. Nothing is removed: the next pod with the address finds them.
func (n *NFT) Stop(ctx context.Context, s Subject) ([]Sample, error) {
	names, err := n.counted(ctx, s.Addr)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		return n.samples(ctx, names)
	}
	// Somebody has flushed the chain; counters may stand yet.
	all, err := n.Read(ctx)
	if errors.Is(err, ErrNotApplied) {
		return nil, nil
	}
	return all.Pods[s.Addr], err
}

// Read is one dump of the table's counters. ErrNotApplied where there is none: the node's own stand as long as the table does.
func (n *NFT) Read(ctx context.Context) (Reading, error) {
	counters, err := n.counters(ctx)
	if err != nil {
		return Reading{}, err
	}
	if len(counters) == 0 {
		return Reading{}, ErrNotApplied
	}
	r := Reading{Pods: map[netip.Addr][]Sample{}}
	for name, s := range counters {
		if who, _, _, _ := parseCounter(name); who == nodeName {
			r.Node = append(r.Node, s)
		} else if addr, ok := subjectOf(name); ok {
			r.Pods[addr] = append(r.Pods[addr], s)
		}
	}
	sortSamples(r.Node)
	for _, samples := range r.Pods {
		sortSamples(samples)
	}
	return r, nil
}

// Standing is the table's handle, which the kernel gives once.
func (n *NFT) Standing(ctx context.Context) (string, error) {
	answer, err := n.get(ctx, unix.NFT_MSG_GETTABLE, nftName(unix.NFTA_TABLE_NAME, NFTTable))
	if err != nil || answer == nil {
		return "", err
	}
	return fmt.Sprintf("table %d", number(attribute(answer, nftaTableHandle))), nil
}

// nftaTableHandle is NFTA_TABLE_HANDLE (include/uapi/linux/netfilter/nf_tables.h).
const nftaTableHandle = 4

// Halt empties the chains that packets come by.
func (n *NFT) Halt(ctx context.Context) error {
	err := n.flush(ctx, func(b *nftBatch) { b.flushChains(chainPre, chainPost) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop counting: %w", n.refused(ctx, err))
	}
	return nil
}

// Drop removes the table. It is added before it is deleted, so that the deletion doesn't fail where there is none.
func (n *NFT) Drop(ctx context.Context) error {
	if err := n.flush(ctx, func(b *nftBatch) { b.conn.DelTable(b.conn.AddTable(b.table)) }); err != nil {
		return fmt.Errorf("delete table ip %s: %w", NFTTable, n.refused(ctx, err))
	}
	return nil
}

// configured tells whether the static part stands and was made from this configuration. The kernel answers the question about the
// chain with the number of its rules too.
func (n *NFT) configured(ctx context.Context, conf Config) (bool, error) {
	answer, err := n.get(ctx, unix.NFT_MSG_GETCHAIN,
		nftName(unix.NFTA_CHAIN_TABLE, NFTTable), nftName(unix.NFTA_CHAIN_NAME, configPrefix+conf.Hash))
	return number(attribute(answer, unix.NFTA_CHAIN_USE)) > 0, err
}

// samples reads counters by name, in order; those that aren't there are left out.
func (n *NFT) samples(ctx context.Context, names []string) ([]Sample, error) {
	var samples []Sample
	for _, name := range names {
		answer, err := n.get(ctx, unix.NFT_MSG_GETOBJ, nftName(unix.NFTA_OBJ_TABLE, NFTTable), nftName(unix.NFTA_OBJ_NAME, name),
			nl.NewRtAttr(unix.NFTA_OBJ_TYPE, binary.BigEndian.AppendUint32(nil, unix.NFT_OBJECT_COUNTER)))
		if err != nil {
			return nil, err
		}
		if answer != nil {
			samples = append(samples, counterSample(name, answer))
		}
	}
	sortSamples(samples)
	return samples, nil
}

// counted are the counters that the rules of an address name. Its two chains have the same classes.
func (n *NFT) counted(ctx context.Context, addr netip.Addr) ([]string, error) {
	rules, err := n.dump(ctx, unix.NFT_MSG_GETRULE,
		nftName(unix.NFTA_RULE_TABLE, NFTTable), nftName(unix.NFTA_RULE_CHAIN, subjectChain(TX, addr)))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range rules {
		for _, e := range attributes(attribute(r, unix.NFTA_RULE_EXPRESSIONS)) {
			name := text(attribute(e, unix.NFTA_EXPR_DATA, unix.NFTA_OBJREF_IMM_NAME))
			if who, _, class, ok := parseCounter(name); text(attribute(e, unix.NFTA_EXPR_NAME)) == "objref" && ok && who == addr.String() {
				names = append(names, counterName(who, RX, class), counterName(who, TX, class))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// counters are all counters of the table, by name.
func (n *NFT) counters(ctx context.Context) (map[string]Sample, error) {
	answers, err := n.dump(ctx, unix.NFT_MSG_GETOBJ, nftName(unix.NFTA_OBJ_TABLE, NFTTable),
		nl.NewRtAttr(unix.NFTA_OBJ_TYPE, binary.BigEndian.AppendUint32(nil, unix.NFT_OBJECT_COUNTER)))
	if err != nil {
		return nil, err
	}
	counters := make(map[string]Sample, len(answers))
	for _, a := range answers {
		name := text(attribute(a, unix.NFTA_OBJ_NAME))
		counters[name] = counterSample(name, a)
	}
	return counters, nil
}

func counterSample(name string, answer []byte) Sample {
	_, direction, class, _ := parseCounter(name)
	data := attribute(answer, unix.NFTA_OBJ_DATA)
	return Sample{
		Direction: direction, Class: class,
		Bytes: number(attribute(data, unix.NFTA_COUNTER_BYTES)), Packets: number(attribute(data, unix.NFTA_COUNTER_PACKETS)),
	}
}

func sortSamples(samples []Sample) {
	slices.SortFunc(samples, func(a, b Sample) int {
		return cmp.Or(cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Class, b.Class))
	})
}

// refused says that a batch failed for what the kernel lacks: nf_tables itself, which a plain question tells, or an expression,
// which has no answer of its own.
func (n *NFT) refused(ctx context.Context, err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	if nftMissing(err) {
		if _, ask := n.get(ctx, unix.NFT_MSG_GETTABLE, nftName(unix.NFTA_TABLE_NAME, NFTTable)); errors.Is(ask, ErrUnavailable) {
			return fmt.Errorf("%w (%w)", ErrUnavailable, err)
		}
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: nf_tables lacks something (%w)", ErrUnavailable, err)
	}
	return err
}
