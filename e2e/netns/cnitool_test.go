package netns

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Releases of libcni that tests run, and the newest version of the specification that each speaks.
const (
	libcniOld    = "0.8.1" // 0.4.0
	libcniMiddle = "1.1.2" // 1.0.0
	libcniNow    = "1.3.0" // 1.1.0, and the only one that reads cniVersions
)

// resultsDir is where cnitool's libcni keeps what ADD answered; nobody can choose another.
const resultsDir = "/var/lib/cni/results"

// conflist is what a caller has to know of a list.
type conflist struct {
	Name     string
	Version  string   `json:"cniVersion"`
	Versions []string `json:"cniVersions"`
	Plugins  []struct{ Type string }
}

func parseConflist(t testing.TB, text string) conflist {
	t.Helper()
	return pathJSON[conflist](t, text)
}

// spec is the version that a release of libcni makes of a list.
func (l conflist) spec(release string) string {
	if release == libcniNow {
		return slices.Max(append(l.Versions, l.Version))
	}
	return l.Version
}

// cnitool is a program with one release of libcni. It finds the list by the network's name in a folder.
type cnitool struct {
	s       *stage
	release string
	path    string // CNI_PATH
	confDir string
	list    conflist
}

// byCnitool drives a list by the program of a release; plugins are ours, then those of a folder.
func (s *stage) byCnitool(release, plugins, conf string) *chain {
	s.t.Helper()
	c := &cnitool{s: s, release: release, path: s.path, confDir: s.t.TempDir(), list: parseConflist(s.t, conf)}
	if plugins != "" {
		c.path += ":" + plugins
	}
	if err := os.WriteFile(filepath.Join(c.confDir, "10.conflist"), []byte(conf), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return &chain{stage: s, rt: c, conflist: conf}
}

func (c *cnitool) run(ctx context.Context, verb string, p lab.Pod) ([]byte, error) {
	cmd := c.s.Node.Command(ctx, peerOf(c.s.t, "cnitool-"+c.release, "cnitool"), verb, c.list.Name, p.Netns)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NETCONFPATH=" + c.confDir, "CNI_PATH=" + c.path, "CNI_IFNAME=" + ifNameOf(p)}
	if p.Name != "" { // it refuses an argument without a value
		cmd.Env = append(cmd.Env, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE="+p.Namespace+";K8S_POD_NAME="+p.Name)
	}
	if p.Capabilities != nil {
		text, err := json.Marshal(p.Capabilities)
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, "CAP_ARGS="+string(text))
	}
	return cmd.Output()
}

func ifNameOf(p lab.Pod) string {
	if p.IfName == "" {
		return "eth0"
	}
	return p.IfName
}

// Add holds what the program prints to the form of the list's version.
func (c *cnitool) Add(ctx context.Context, p lab.Pod) (types.Result, error) {
	out, err := c.run(ctx, "add", p)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(formOf(out, c.list.spec(c.release), ifNameOf(p)), c.cached(p)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return create.CreateFromBytes(out)
}

func (c *cnitool) Check(ctx context.Context, p lab.Pod) error { return c.silent(ctx, "check", p) }
func (c *cnitool) Del(ctx context.Context, p lab.Pod) error   { return c.silent(ctx, "del", p) }
func (c *cnitool) Status(ctx context.Context) error           { return c.silent(ctx, "status", lab.Pod{}) }

// GC: the program sends no list.
func (c *cnitool) GC(ctx context.Context, alive ...lab.Pod) error {
	if len(alive) > 0 {
		return errors.New("cnitool can't say which pods are alive")
	}
	return c.silent(ctx, "gc", lab.Pod{})
}

func (c *cnitool) silent(ctx context.Context, verb string, p lab.Pod) error {
	out, err := c.run(ctx, verb, p)
	if err == nil && len(out) > 0 {
		return fmt.Errorf("%s printed %q", verb, out)
	}
	return err
}

// formOf: one document, of this version, with neither older nor newer fields, whose address is the pod's link's.
func formOf(out []byte, spec, ifName string) error {
	var doc struct {
		CNIVersion string
		Interfaces []struct {
			Name, Sandbox string
			MTU           int
		}
		IPs []struct {
			Version   string
			Interface *int
		}
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return err
	}
	var errs []error
	if doc.CNIVersion != spec {
		errs = append(errs, fmt.Errorf("result of version %q, want %q", doc.CNIVersion, spec))
	}
	for _, ip := range doc.IPs {
		if old := strings.HasPrefix(spec, "0."); old != (ip.Version == "4") {
			errs = append(errs, fmt.Errorf("version %q of an address in %s", ip.Version, spec))
		}
		i := ip.Interface
		if i == nil || *i >= len(doc.Interfaces) || doc.Interfaces[*i].Name != ifName || doc.Interfaces[*i].Sandbox == "" {
			errs = append(errs, errors.New("an address isn't that of the pod's link"))
		}
	}
	if len(doc.IPs) != 1 {
		errs = append(errs, fmt.Errorf("%d addresses", len(doc.IPs)))
	}
	if has := bytes.Contains(out, []byte(`"mtu"`)); has != (spec == "1.1.0") {
		errs = append(errs, fmt.Errorf("an MTU in %s: %t", spec, has))
	}
	return errors.Join(errs...)
}

// cached: libcni's memory is the node's, not the machine's.
func (c *cnitool) cached(p lab.Pod) error {
	sum := sha512.Sum512([]byte(p.Netns))
	file := fmt.Sprintf("%s/%s-cnitool-%x-%s", resultsDir, c.list.Name, sum[:10], ifNameOf(p))
	if _, err := os.Stat(c.s.Node.Path(file)); err != nil {
		return fmt.Errorf("no memory of the ADD: %w", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		return fmt.Errorf("%s is on the machine: %w", file, err)
	}
	return nil
}
