package netns

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	podmanNetwork = "native-vmss" // the name in every file of cni-conf
	podmanDir     = "/run/podman" // on the node, whose /run is its own
	podmanNetDir  = podmanDir + "/net.d"
	podmanImage   = "localhost/guest:1"
	debianPlugins = "/usr/lib/cni" // the distribution's own
)

// podman is the distribution's, with its CNI backend, as it runs on a stage's node. What it writes lies in memory on the node
// and goes with it; nothing of the machine's own containers is seen or touched.
type podman struct {
	*stage
	network string
	calls   *foreign // notes each call of native-vmss on its way to the shipped one
}

// newPodman prepares the node, brings conflists of cni-conf and imports the image. They come as they are shipped.
func newPodman(s *stage, conflists ...string) *podman {
	s.t.Helper()
	for _, name := range []string{"podman", "crun", debianPlugins + "/portmap"} {
		if _, err := exec.LookPath(name); err != nil {
			s.t.Fatalf("%v: INSTALL=1 hack/test.sh installs what tests need", err)
		}
	}
	p := &podman{stage: s, network: podmanNetwork, calls: recorder(s)}
	if err := s.Node.Do(podmanMounts); err != nil {
		s.t.Fatal(err)
	}
	s.Defer(func() error {
		_, err := p.try("rm", "--all", "--force", "--time", "0")
		return err
	})
	p.write(podmanDir+"/containers.conf", p.conf())
	for _, name := range conflists {
		p.write(filepath.Join(podmanNetDir, name), shippedText(s.t, name))
	}
	if got := p.do("info", "--format", "{{.Host.NetworkBackend}} {{.Host.OCIRuntime.Name}}"); got != "cni crun" {
		s.t.Fatalf("podman works with %q, want cni crun", got)
	}
	p.write(podmanDir+"/image.tar", string(guestImage(s.t)))
	p.do("import", "--change", `ENTRYPOINT ["/guest"]`, "--change", `CMD ["serve","80"]`, podmanDir+"/image.tar", podmanImage)
	p.settle()
	return p
}

// podmanMounts hides three places of the machine, on the node alone.
func podmanMounts() error {
	for _, m := range []struct{ target, data string }{
		// Containers and images, and a cache of the latter whose place no option moves.
		{"/var/lib/containers", "mode=700"},
		// podman always puts its namespaces' names here. The machine's directory is shared with all nodes, and only the lab's names
		// belong in it.
		{"/run/netns", "mode=755"},
		// crun and podman look at the file system's type to tell the version of cgroups, even when told to make none. The node's /sys
		// has nothing there. A tmpfs stands for version 1, whatever the machine has.
		{"/sys/fs/cgroup", "mode=755"},
	} {
		if m.target == "/var/lib/containers" { // a mount point must exist
			if err := os.MkdirAll(m.target, 0o700); err != nil {
				return err
			}
		}
		if err := unix.Mount("tmpfs", m.target, "tmpfs", 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return os.MkdirAll(podmanNetDir, 0o755)
}

// conf is containers.conf; it takes the place of the machine's own files.
func (p *podman) conf() string {
	dirs, _ := json.Marshal([]string{p.calls.dir, p.path, debianPlugins})
	return strings.Join([]string{
		`[containers]`,
		// crun would raise limits to podman's defaults, which needs CAP_SYS_RESOURCE; not every machine gives that to root.
		`default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]`,
		// No hierarchy is mounted, and there is no systemd to ask for a slice.
		`cgroups = "disabled"`,
		`[engine]`,
		`runtime = "crun"`, // runc doesn't know how to run without cgroups
		`cgroup_manager = "cgroupfs"`,
		`events_logger = "none"`, // no journal
		`lock_type = "file"`,     // the default is one object in /dev/shm for the whole machine
		`[network]`,
		`network_backend = "cni"`,
		`network_config_dir = "` + podmanNetDir + `"`, // also keeps /etc/cni/net.d free of podman's lock file
		`cni_plugin_dirs = ` + string(dirs),
		``,
	}, "\n")
}

// recorder is a native-vmss that notes its environment and input and becomes the shipped one.
func recorder(s *stage) *foreign {
	s.t.Helper()
	f := newForeign(s, "")
	f.name = "native-vmss"
	f.install()
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"} {
		f.does(command, "env >env."+command+"\nexec "+program(s.t, "native-vmss")+" <stdin."+command+"\n")
	}
	return f
}

// env is a variable of the last call of a command.
func (p *podman) env(command, name string) string {
	p.t.Helper()
	for line := range strings.Lines(p.calls.read("env." + command)) {
		if value, found := strings.CutPrefix(line, name+"="); found {
			return strings.TrimSpace(value)
		}
	}
	p.t.Errorf("%s of %s was not set", name, command)
	return ""
}

// write makes a file on the node.
func (p *podman) write(path, text string) {
	p.t.Helper()
	if err := os.WriteFile(p.Node.Path(path), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// try runs podman on the node and returns what it prints; its words are in the error.
func (p *podman) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// vfs copies files, so it works on every file system: overlay needs more of the kernel than a tmpfs inside a container gives.
	cmd := p.Node.Command(ctx, "podman", append([]string{"--storage-driver", "vfs"}, args...)...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+podmanDir+"/containers.conf", "TMPDIR="+podmanDir, "XDG_RUNTIME_DIR=")
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("podman %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(diag.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// do wants podman to succeed.
func (p *podman) do(args ...string) string {
	p.t.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// refuses wants podman to fail with all of these words.
func (p *podman) refuses(args []string, words ...string) {
	p.t.Helper()
	out, err := p.try(args...)
	if err == nil {
		p.t.Errorf("podman %s succeeded: %s", strings.Join(args, " "), out)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			p.t.Errorf("%v\ndoes not say %q", err, w)
		}
	}
}

// started are the arguments that start a container; no registry is asked for the image.
func (p *podman) started(name string, options ...string) []string {
	args := []string{"run", "--detach", "--pull", "never", "--name", name, "--network", p.network}
	return append(append(args, options...), podmanImage)
}

// container is one that runs.
type container struct {
	name, id string
	ip       netip.Addr
	mac      string
	sandbox  string // path of its network namespace on the node
}

func (p *podman) run(name string, options ...string) container {
	p.t.Helper()
	p.do(p.started(name, options...)...)
	return p.ready(name)
}

// ready waits until the container's program listens; podman returns before.
func (p *podman) ready(name string) container {
	p.t.Helper()
	if !pathEventually(patience, func() bool {
		_, err := p.try("exec", name, "/guest", "dial", "127.0.0.1:80")
		return err == nil
	}) {
		p.t.Errorf("the program of %s does not listen: %s", name, p.do("logs", name))
	}
	return p.look(name)
}

// look asks podman what it believes.
func (p *podman) look(name string) container {
	p.t.Helper()
	var list []struct {
		ID              string `json:"Id"`
		NetworkSettings struct {
			SandboxKey string
			Networks   map[string]struct{ IPAddress, MacAddress string }
		}
	}
	if err := json.Unmarshal([]byte(p.do("inspect", name)), &list); err != nil || len(list) != 1 {
		p.t.Fatalf("inspect %s: %d %v", name, len(list), err)
	}
	n := list[0].NetworkSettings.Networks[p.network]
	ip, err := netip.ParseAddr(n.IPAddress)
	if err != nil {
		p.t.Fatalf("%s has no address: %+v", name, list[0])
	}
	return container{name: name, id: list[0].ID, ip: ip, mac: n.MacAddress, sandbox: list[0].NetworkSettings.SandboxKey}
}

// dial connects from inside a container and returns the address that it came from as its own kernel has it.
func (p *podman) dial(name string, to netip.AddrPort) netip.Addr {
	p.t.Helper()
	from, err := netip.ParseAddrPort(p.do("exec", name, "/guest", "dial", to.String()))
	if err != nil {
		p.t.Errorf("dial %s from %s: %v", to, name, err)
	}
	return from.Addr()
}

// serves wants the container to answer to the gateway of its subnet.
func (p *podman) serves(c container, when string) {
	p.t.Helper()
	got, _, err := p.GW.Exchange(chainContext(p.t), netip.AddrPortFrom(c.ip, 80), "hello", echoWait)
	if err != nil || got != "hello" {
		p.t.Errorf("%s: %s (%s) answers %q to the gateway: %v", when, c.name, c.ip, got, err)
	}
}

// settle is a container that comes and goes: what podman and libcni make once (their directories) is in later snapshots.
func (p *podman) settle(options ...string) {
	p.t.Helper()
	p.run("settle", options...)
	p.rm("settle")
}

// rm removes a container, or with --all every one, without waiting for its program to end by itself.
func (p *podman) rm(which string) {
	p.t.Helper()
	p.do("rm", "--force", "--time", "0", which)
}

// gone wants nothing left of all containers: not on the node, not in the store, not with podman, and no namespace.
func (p *podman) gone(before lab.Snapshot) {
	p.t.Helper()
	p.noLeak(before)
	if left := p.do("ps", "--all", "--quiet"); left != "" {
		p.t.Errorf("podman still has %s", left)
	}
	if left := p.sh("ls /run/netns"); left != "" {
		p.t.Errorf("namespaces left: %s", left)
	}
}

// leases are what vmssctl shows people: container id -> address, pod.
func (p *podman) leases() map[string]string {
	p.t.Helper()
	list := map[string]string{}
	for _, l := range pathJSON[[]struct{ Address, State, ContainerID, Pod string }](p.t, p.mustCtl("ipam", "list", "-o", "json")) {
		if l.State == "leased" {
			list[l.ContainerID] = l.Address + " " + l.Pod
		}
	}
	return list
}

// guest builds the program of the image once per run.
var guest = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "nvt-guest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "guest")
	source := filepath.Join("..", "..", "internal", "lab", "guest")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, "./"+source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the guest: %w: %s", err, text)
	}
	return os.ReadFile(out)
})

// guestImage is a root file system with the guest and nothing else.
func guestImage(t testing.TB) []byte {
	t.Helper()
	binary, err := guest()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "guest", Mode: 0o755, Size: int64(len(binary))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(binary); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
