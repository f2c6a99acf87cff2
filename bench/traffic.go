package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// What one figure of the round-trip rows is: so many exchanges of one byte between a pod and a host behind its node's gateway.
const (
	roundTrips = 10_000
	echoPort   = 7
)

// Sizes of the nodes that are compared. The pod that is measured is the last in every list.
var nodeSizes = []int{30, 250}

// backends are what accounting is set to, in turn, on one and the same node with one and the same pods.
var backends = []string{"none", "nftables", "iptables"}

// trafficRows are what accounting costs a packet, and what it costs to read all counters.
func trafficRows(ctx context.Context, f *fixture, o options, rep *report) error {
	nodes := make([]*metered, 0, len(nodeSizes))
	for _, pods := range nodeSizes {
		m, err := f.metered(ctx, pods)
		if err != nil {
			return err
		}
		nodes = append(nodes, m)
	}
	for round := -1; round < o.rounds; round++ { // the first one warms up
		for k := range backends {
			for _, m := range nodes {
				if err := m.measure(ctx, backends[(k+max(round, 0))%len(backends)], round >= 0); err != nil {
					return err
				}
			}
		}
	}
	slowdown := map[string][]float64{}
	for _, m := range nodes {
		off := m.trips["none"]
		for _, backend := range backends[1:] {
			on := m.trips[backend]
			r := row{name: fmt.Sprintf("%d round trips at %d pods", roundTrips, m.pods), sides: backend + " / none", a: on, b: off}
			if backend == "nftables" {
				r.must, r.goal = 1.15, 1.05
			}
			rep.add(r)
			slowdown[backend] = append(slowdown[backend], ratio(median(on.walls()), median(off.walls())))
		}
	}
	for _, backend := range backends[1:] {
		r := row{name: backend + ": the ratio at 250 pods over that at 30", value: slowdown[backend][1] / slowdown[backend][0], unit: "×"}
		if backend == "nftables" {
			r.mustNum = 1.05
		}
		rep.add(r)
	}
	last := nodes[len(nodes)-1]
	for _, backend := range backends[1:] {
		r := row{name: fmt.Sprintf("page of %d pods, whole process", last.pods), sides: backend, a: last.pages[backend]}
		if backend == "nftables" {
			r.mustBe = 20 * time.Millisecond
		}
		rep.add(r)
	}
	rep.add(row{
		name: fmt.Sprintf("reading of %d pods: a page without their series, less what the program takes to start", last.pods), unit: "ms",
		value: msOf(median(last.reads.walls()) - median(last.starts.walls())), mustNum: 20,
	})
	return nil
}

// metered is a node with pods, of which the last one exchanges bytes with a host.
type metered struct {
	*side
	pods         int
	trips, pages map[string]figures
	// Of the program that prints the page: its start alone, and one that reads all pods and shows namespaces only.
	starts, reads figures
	client        int // the connection's end in the pod, a blocking descriptor
	server        int // and the host's
}

func (f *fixture) metered(ctx context.Context, pods int) (*metered, error) {
	const more = 64 // addresses for the pods that come and go to change the backend
	s, err := f.ours(poolOf(pods+more), func(conf map[string]any) {
		conf["accounting"] = map[string]any{"backend": "none"}
		atOnce(conf)
	})
	if err != nil {
		return nil, err
	}
	m := &metered{side: s, pods: pods, trips: map[string]figures{}, pages: map[string]figures{}}
	var last *lab.Namespace
	for i := range pods {
		last = s.simple.Pod(f, fmt.Sprintf("m%d", i))
		if _, err := s.run(ctx, s.call("ADD", fmt.Sprintf("meter-%d", i), last.Path)); err != nil {
			return nil, err
		}
	}
	return m, m.connect(ctx, f, last)
}

// connect makes the connection between the pod and a host behind the gateway.
func (m *metered) connect(ctx context.Context, f *fixture, pod *lab.Namespace) error {
	at := netip.AddrPortFrom(lab.SimpleGateway, echoPort)
	l, err := m.simple.GW.ListenTCP(at)
	if err != nil {
		return err
	}
	defer l.Close()
	near, err := pod.DialTCP(ctx, netip.Addr{}, at, patience)
	if err != nil {
		return err
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		return err
	}
	defer far.Close()
	if m.server, err = f.blocking(far); err != nil {
		return err
	}
	m.client, err = f.blocking(near)
	return err
}

// blocking is a descriptor of a connection's own, which waits in the kernel.
func (f *fixture) blocking(c net.Conn) (fd int, err error) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	if ctlErr := raw.Control(func(of uintptr) { fd, err = unix.Dup(int(of)) }); ctlErr != nil {
		return 0, ctlErr
	}
	if err != nil {
		return 0, err
	}
	f.Cleanup(func() { _ = unix.Close(fd) })
	return fd, unix.SetNonblock(fd, false)
}

// exchange sends bytes, each after the answer to the one before. Both ends run on one processor, and wait in the kernel without the
// runtime's knowledge: so nothing but the kernel's work is measured.
func exchange(client, server, count int) error {
	runtime.GOMAXPROCS(runtime.NumCPU() + 2) // both ends keep theirs
	errs := make(chan error, 2)
	end := func(fd int, first, second uintptr) {
		runtime.LockOSThread() // for good: the thread and its binding end with us
		var one unix.CPUSet
		one.Set(0)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			errs <- err
			return
		}
		b := new(byte)
		for range count {
			for _, call := range []uintptr{first, second} {
				n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(b)), 1)
				if errno != 0 || n != 1 {
					errs <- fmt.Errorf("%d bytes: %w", n, errno)
					_ = unix.Shutdown(fd, unix.SHUT_RDWR) // the other end's wait ends
					return
				}
			}
		}
		errs <- nil
	}
	go end(server, unix.SYS_READ, unix.SYS_WRITE)
	go end(client, unix.SYS_WRITE, unix.SYS_READ)
	return errors.Join(<-errs, <-errs)
}

// use has the node count by another backend, as a changed configuration does: with the next ADD.
func (m *metered) use(ctx context.Context, backend string) error {
	var conf map[string]any
	if err := json.Unmarshal(m.conf, &conf); err != nil {
		return err
	}
	conf["accounting"] = map[string]any{"backend": backend}
	text, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	m.conf = text
	_, _, err = m.cycle(ctx)
	return err
}

func (m *metered) measure(ctx context.Context, backend string, count bool) error {
	if err := m.use(ctx, backend); err != nil {
		return err
	}
	began := time.Now()
	if err := exchange(m.client, m.server, roundTrips); err != nil {
		return fmt.Errorf("round trips: %w", err)
	}
	trips := sample{wall: time.Since(began)}
	page, err := m.page(ctx, backend)
	if err != nil {
		return err
	}
	if backend == "nftables" {
		if err := m.read(ctx, count); err != nil {
			return err
		}
	}
	if !count {
		return nil
	}
	t, p := m.trips[backend], m.pages[backend]
	t.add(trips)
	p.add(page)
	m.trips[backend], m.pages[backend] = t, p
	return nil
}

// read has the program print its version, and what namespaces have. Both are whole processes; their difference is the reading.
func (m *metered) read(ctx context.Context, count bool) error {
	for _, what := range []struct {
		into *figures
		args []string
		says string
	}{
		{&m.starts, []string{"--version"}, "version"},
		{&m.reads, []string{"--conf", m.confFile(), "metrics", "--pods=false"}, `bytes_total{class="cluster",direction="tx",namespace="default"}`},
	} {
		out, took, err := m.vmssctl(ctx, what.args...)
		if err != nil {
			return err
		}
		if !strings.Contains(out, what.says) {
			return fmt.Errorf("vmssctl %v says %q", what.args, out)
		}
		if count {
			what.into.add(took)
		}
	}
	return nil
}

func (m *metered) confFile() string { return filepath.Join(m.simple.Dir, "metered.json") }

func (m *metered) vmssctl(ctx context.Context, args ...string) (out string, took sample, err error) {
	cmd := m.node.Command(ctx, filepath.Join(m.path, "vmssctl"), args...)
	began := time.Now()
	text, err := cmd.Output()
	took.wall = time.Since(began)
	if err != nil {
		return "", took, fmt.Errorf("vmssctl %v: %w", args, err)
	}
	took.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return string(text), took, nil
}

// page has the page printed, which must say that all pods are counted by this backend.
func (m *metered) page(ctx context.Context, backend string) (sample, error) {
	if err := os.WriteFile(m.confFile(), m.side.conf, 0o600); err != nil {
		return sample{}, err
	}
	out, took, err := m.vmssctl(ctx, "--conf", m.confFile(), "metrics")
	if err != nil {
		return took, err
	}
	if backend == "none" {
		return took, nil
	}
	on := strings.Contains(out, `native_vmss_accounting_on{backend="`+backend+`"} 1`)
	if n := strings.Count(out, `class="cluster",direction="tx",namespace="default",pod=`); !on || n != m.pods {
		return took, fmt.Errorf("accounting by %s on: %v, %d pods on the page, want %d", backend, on, n, m.pods)
	}
	return took, nil
}
