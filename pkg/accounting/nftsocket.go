package accounting

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/failpoint"
)

const (
	// nftReplyTimeout bounds the wait for the kernel's answer, which it writes before the send returns.
	nftReplyTimeout = 10 * time.Second
	// nftBuffer takes the answers to a batch, one for each message: the default overflows at about 240 of them.
	nftBuffer = 1 << 20
	// nftDumpTries is how often a dump is asked for that other changes of any table interrupt; the pause between two tries doubles up
	// to the longest one. All of them: 0.4 s.
	nftDumpTries     = 15
	nftDumpPause     = time.Millisecond
	nftDumpPauseMost = 32 * time.Millisecond
	// nftDrain is how long to look for answers that are left after a batch failed: they are there already.
	nftDrain = 5 * time.Millisecond
)

// nftSockets are two sockets of NETLINK_NETFILTER that stay open: google/nftables writes batches by one of them, which most processes
// never need. Questions go by the other, where an error keeps its number and a dump is one request.
type nftSockets struct {
	mu    sync.Mutex     // one batch at a time
	batch *nftables.Conn // nil: not opened yet
	raw   *netlink.Conn  // of batch, for its deadline
	space uint64         // the network namespace of both
	asks  *nl.NetlinkSocket
	table map[int]*nl.SocketHandle
}

func openNFTSockets() (*nftSockets, error) {
	space, err := thisNamespace()
	if err != nil {
		return nil, err
	}
	s := &nftSockets{space: space}
	asks, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, nftUnavailable(fmt.Errorf("open netfilter socket: %w", err))
	}
	tv := unix.NsecToTimeval(nftReplyTimeout.Nanoseconds())
	if err := asks.SetReceiveTimeout(&tv); err != nil {
		asks.Close()
		return nil, fmt.Errorf("set netlink timeout: %w", err)
	}
	s.asks, s.table = asks, map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: asks}}
	return s, nil
}

func thisNamespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("look for the network namespace: %w", err)
	}
	return st.Ino, nil
}

// openBatch is for who holds mu.
func (s *nftSockets) openBatch() error {
	if s.batch != nil {
		return nil
	}
	space, err := thisNamespace()
	if err == nil && space != s.space {
		err = errors.New("this thread is in another network namespace")
	}
	if err != nil {
		return err
	}
	s.batch, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		s.raw = c
		return c.SetReadBuffer(nftBuffer)
	}))
	if err != nil {
		return nftUnavailable(fmt.Errorf("open netfilter socket: %w", err))
	}
	return nil
}

func (s *nftSockets) close() {
	if s.batch != nil {
		_ = s.batch.CloseLasting()
	}
	s.asks.Close()
}

// nftEnter stands before every call that changes or reads nftables.
func nftEnter(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return failpoint.Hit("accounting." + op)
}

// flush is the only way to change nftables: every batch passes here.
func (s *nftSockets) flush(ctx context.Context, write func(*nftBatch)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := nftEnter(ctx, "nft-flush"); err != nil {
		return err
	}
	if err := s.openBatch(); err != nil {
		return err
	}
	b := &nftBatch{conn: s.batch, table: nftTable()}
	write(b)
	deadline := time.Now().Add(nftReplyTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	_ = s.raw.SetDeadline(deadline)
	err := s.batch.Flush()
	if err != nil {
		s.drain()
	}
	return errors.Join(b.err, err)
}

// drain takes answers away that a failed batch has left: the next one would take them for its own.
func (s *nftSockets) drain() {
	end := time.Now().Add(nftDrain)
	_ = s.raw.SetDeadline(end)
	for time.Now().Before(end) {
		if _, err := s.raw.Receive(); errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// ask is the only way to read nftables: one request, its answers.
func (s *nftSockets) ask(ctx context.Context, req *nl.NetlinkRequest) ([][]byte, error) {
	if err := nftEnter(ctx, "nft-read"); err != nil {
		return nil, err
	}
	req.Sockets = s.table
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	for i, a := range answers {
		if len(a) < nfgenmsgSize {
			return nil, errors.New("an answer without a header")
		}
		answers[i] = a[nfgenmsgSize:]
	}
	return answers, err
}

// get asks for one object; nil where there is none.
func (s *nftSockets) get(ctx context.Context, message int, attrs ...*nl.RtAttr) ([]byte, error) {
	answers, err := s.ask(ctx, nftRequest(message, 0, attrs))
	switch {
	case err == nil && len(answers) == 1:
		return answers[0], nil
	case err == nil:
		err = errors.New("not one answer")
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case nftMissing(err):
		err = fmt.Errorf("%w (%w)", ErrUnavailable, err)
	}
	return nil, fmt.Errorf("read table ip %s: %w", NFTTable, err)
}

// dump asks for all objects of a kind, until no change interrupted the answer: a partial list is never returned.
func (s *nftSockets) dump(ctx context.Context, message int, attrs ...*nl.RtAttr) (answers [][]byte, err error) {
	for try := range nftDumpTries {
		answers, err = s.ask(ctx, nftRequest(message, unix.NLM_F_DUMP, attrs))
		if !errors.Is(err, nl.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
		time.Sleep(min(nftDumpPause<<try, nftDumpPauseMost))
	}
	switch {
	case err == nil:
		return answers, nil
	case errors.Is(err, unix.ENOENT): // of what the filter names
		return nil, nil
	case nftMissing(err):
		err = fmt.Errorf("%w (%w)", ErrUnavailable, err)
	}
	return nil, fmt.Errorf("list table ip %s: %w", NFTTable, err)
}

func nftRequest(message, flags int, attrs []*nl.RtAttr) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|message, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET})
	for _, a := range attrs {
		req.AddData(a)
	}
	return req
}

func nftName(kind int, name string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(name)) }

// nftMissing knows the answers of a kernel without nf_tables to a plain question: no such netlink family, or no such subsystem in it.
func nftMissing(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

func nftUnavailable(err error) error {
	if nftMissing(err) {
		return fmt.Errorf("%w (%w)", ErrUnavailable, err)
	}
	return err
}
