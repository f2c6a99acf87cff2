package netns

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	criDir    = "/run/containerd" // of the node alone, as all of its /run
	criSocket = criDir + "/containerd.sock"
	criConfs  = "/run/cni/net.d"
	criBins   = "/run/cni/bin"
	criClient = criDir + "/crictl.yaml"
	// criImage is in no registry.
	criImage = "guest.test/guest:1"
	// criStart is what a busy machine may take to start containerd or a container.
	criStart = 60 * time.Second
)

// criConfig is containerd's, in a form that 1.6 and 2.x read. AppArmor's profiles and a process's minimal OOM score are the
// machine's, which is left alone.
const criConfig = `version = 2
root = "` + criDir + `/root"
state = "` + criDir + `/state"
[grpc]
  address = "` + criSocket + `"
[ttrpc]
  address = "` + criSocket + `.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "` + criDir + `/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + criImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + criBins + `"
    conf_dir = "` + criConfs + `"
`

// cri is a containerd on a node, and whoever talks to it as kubelet does.
type cri struct {
	*stage
	programs string // the directory of containerd and its shim
	group    lab.Cgroup
	daemon   *criDaemon
}

// criDaemon is the process that is there now; what it says goes to one file for all that follow each other.
type criDaemon struct {
	*lab.Cmd
	log *os.File
}

// newCRI prepares a node; the daemon is yet to be started.
func newCRI(s *stage, programs string) *cri {
	s.t.Helper()
	group, err := s.Node.Cgroups()
	if err != nil {
		s.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(s.Dir, "containerd-"+s.Node.Name+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if text, _ := os.ReadFile(log.Name()); s.t.Failed() {
			s.t.Logf("log of %s/containerd:\n%s", programs, text[max(0, len(text)-20_000):])
		}
		log.Close()
	})
	c := &cri{stage: s, programs: programs, group: group, daemon: &criDaemon{log: log}}
	// Its network namespaces are nobody else's business; the lab's own names are hidden from then on.
	s.sh("mount -t tmpfs tmpfs /run/netns; mkdir -p " + criDir + " " + criConfs + " " + criBins)
	c.put(criDir+"/config.toml", 0o644, criConfig)
	c.put(criClient, 0o644, fmt.Sprintf("runtime-endpoint: unix://%[1]s\nimage-endpoint: unix://%[1]s\ntimeout: %[2]d\n",
		criSocket, int(criStart.Seconds())))
	c.put(criBins+"/native-vmss", 0o755, fmt.Sprintf(criSpy, "", program(s.t, "native-vmss")))
	c.put(criBins+"/portmap", 0o755, fmt.Sprintf(criSpy, "portmap-", peer(s.t, "portmap")))
	s.sh(fmt.Sprintf("ln -s %s %s", peer(s.t, "loopback"), criBins))
	return c
}

// version is the release: "containerd github.com/containerd/containerd 1.6.20~ds1 …" is 1.6.20.
func (c *cri) version() string {
	c.t.Helper()
	words := strings.Fields(c.sh(c.programs + "/containerd --version"))
	if len(words) < 3 {
		c.t.Fatalf("%s says %q", c.programs, words)
	}
	v := strings.TrimPrefix(words[2], "v")
	if end := strings.IndexAny(v, "~+-"); end >= 0 {
		v = v[:end]
	}
	return v
}

// as is the same containerd in the hands of a subtest.
func (c *cri) as(t testing.TB) *cri {
	d := *c
	d.stage = c.pathAs(t)
	return &d
}

// put writes a file of the node as installers of conflists have to: a name that nobody reads, then a rename beside it.
func (c *cri) put(file string, mode os.FileMode, text string) {
	c.t.Helper()
	path := c.Node.Path(file)
	if err := os.WriteFile(path+".tmp", []byte(text), mode); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		c.t.Fatal(err)
	}
}

// start starts containerd and waits until it answers.
func (c *cri) start() {
	c.t.Helper()
	const script = `mkdir -p "${1%/*}" && echo $$ >"$1" && exec "$2/containerd" -l warn -c "$3"`
	cmd := c.Node.Command(context.Background(), "/bin/sh", "-c", script, "sh", c.group.Procs, c.programs, criDir+"/config.toml")
	cmd.Env = []string{"PATH=" + c.programs + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = c.daemon.log, c.daemon.log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.daemon.Cmd = cmd
	if !pathEventually(criStart, func() bool { return c.status().RuntimeReady.Status }) {
		c.t.Fatalf("%s does not get ready", c.programs)
	}
}

// end sends containerd a signal and waits for its end. Its shims and their containers live on.
func (c *cri) end(sig syscall.Signal) {
	c.t.Helper()
	if err := c.daemon.Process.Signal(sig); err != nil {
		c.t.Fatal(err)
	}
	_ = c.daemon.Wait()
}

// crictl is kubelet's hand.
func (c *cri) crictl(args ...string) (string, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*criStart)
	defer cancel()
	cmd := c.Node.Command(ctx, peerOf(c.t, "cri-tools", "crictl"), append([]string{"--config", criClient}, args...)...)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

func (c *cri) mustCrictl(args ...string) string {
	c.t.Helper()
	out, err := c.crictl(args...)
	if err != nil {
		c.t.Fatalf("crictl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// load imports an archive of images.
func (c *cri) load(archive string) {
	c.t.Helper()
	out, err := c.Node.Command(context.Background(), filepath.Join(c.programs, "ctr"), "-a", criSocket, "-n", "k8s.io",
		"images", "import", archive).CombinedOutput()
	if err != nil {
		c.t.Fatalf("import %s: %v: %s", archive, err, out)
	}
	if !pathEventually(criStart, func() bool { return strings.Contains(c.mustCrictl("images"), "guest.test/guest") }) {
		c.t.Fatal("the image that was imported isn't known to CRI")
	}
}

// criStatus is what kubelet reads every five seconds.
type criStatus struct {
	RuntimeReady, NetworkReady criCondition
	// Plugins are those of the list that is in use now.
	Plugins []string
}

type criCondition struct {
	Type, Reason, Message string
	Status                bool
}

// status is the zero value while nobody answers.
func (c *cri) status() (s criStatus) {
	c.t.Helper()
	out, err := c.crictl("info")
	if err != nil {
		return s
	}
	var doc struct {
		Status    struct{ Conditions []criCondition }
		CNIConfig struct {
			Networks []struct {
				IFName string
				Config struct {
					Plugins []struct{ Network struct{ Type string } }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		c.t.Fatalf("crictl info: %v: %s", err, out)
	}
	for _, cond := range doc.Status.Conditions {
		switch cond.Type {
		case "RuntimeReady":
			s.RuntimeReady = cond
		case "NetworkReady":
			s.NetworkReady = cond
		}
	}
	for _, n := range doc.CNIConfig.Networks {
		for _, p := range n.Config.Plugins {
			if n.IFName == "eth0" {
				s.Plugins = append(s.Plugins, p.Network.Type)
			}
		}
	}
	return s
}

// criPod is a pod as kubelet knows it.
type criPod struct {
	name, id  string
	conf      string // the file of its configuration
	container string
	ip        netip.Addr
	netns     string
}

// configured writes down what kubelet would ask for; host ports lead to port 80.
func (c *cri) configured(name string, hostPorts ...int) *criPod {
	c.t.Helper()
	ports := []map[string]any{}
	for _, port := range hostPorts {
		ports = append(ports, map[string]any{"protocol": 0, "host_port": port, "container_port": 80})
	}
	text, err := json.Marshal(map[string]any{
		"metadata":      map[string]any{"name": name, "namespace": "team-a", "uid": "uid-of-" + name, "attempt": 0},
		"hostname":      name,
		"port_mappings": ports,
		"linux":         map[string]any{"cgroup_parent": c.group.Pods},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	p := &criPod{name: name, conf: filepath.Join(c.Dir, c.Node.Name+"-"+name+".json")}
	if err := os.WriteFile(p.conf, text, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// runSandbox is RunPodSandbox; the error is as kubelet would see it.
func (c *cri) runSandbox(p *criPod) (err error) {
	c.t.Helper()
	if p.id, err = c.crictl("runp", p.conf); err != nil {
		return err
	}
	var doc struct {
		Status struct{ Network struct{ IP netip.Addr } }
		Info   struct {
			RuntimeSpec struct {
				Linux struct{ Namespaces []struct{ Type, Path string } }
			}
		}
	}
	out, err := c.crictl("inspectp", "-o", "json", p.id)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		return err
	}
	p.ip = doc.Status.Network.IP
	for _, n := range doc.Info.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			p.netns = n.Path
		}
	}
	return nil
}

// serve has the pod's one container listen on port 80.
func (c *cri) serve(p *criPod) {
	c.t.Helper()
	conf := filepath.Join(c.Dir, c.Node.Name+"-"+p.name+"-container.json")
	text := fmt.Sprintf(`{"metadata":{"name":"serve"},"image":{"image":%q},"args":["serve","80"],"linux":{}}`, criImage)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	p.container = c.mustCrictl("create", p.id, conf, p.conf)
	c.mustCrictl("start", p.container)
}

// dials has the pod's program connect, wants its own words back and returns the address that it was connected from.
func (c *cri) dials(p *criPod, to netip.AddrPort) netip.Addr {
	c.t.Helper()
	out, err := c.crictl("exec", "-s", p.container, "/guest", "dial", to.String())
	if err != nil {
		c.t.Errorf("%s to %s: %v", p.name, to, err)
		return netip.Addr{}
	}
	from, err := netip.ParseAddrPort(out)
	if err != nil {
		c.t.Errorf("%s to %s: %v", p.name, to, err)
	}
	return from.Addr()
}

// echoes wants a connection to a pod's program to be alive.
func (c *cri) echoes(conn net.Conn, text string) {
	c.t.Helper()
	answer := make([]byte, len(text))
	_ = conn.SetDeadline(time.Now().Add(echoWait))
	if _, err := io.WriteString(conn, text); err != nil {
		c.t.Errorf("%s: %v", text, err)
		return
	}
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != text {
		c.t.Errorf("%s: %q %v", text, answer, err)
	}
}

// packagedContainerd is where the distribution's containerd is.
func packagedContainerd(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("containerd")
	if err != nil {
		t.Fatalf("the package containerd is missing: %v", err)
	}
	return filepath.Dir(path)
}
