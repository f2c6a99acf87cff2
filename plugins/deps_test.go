// Package plugins holds what must be true of both plugin binaries: the runtime starts them once or more per pod, so what they
// link and how big they are decides how long that takes.
package plugins

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxSize is the limit for one shipped binary in bytes.
const maxSize = 10 << 20

// binaries are the mains of this folder.
var binaries = []string{"native-vmss", "ipam-vmss"}

// allowedModules may be linked. The Azure SDK, client-go, the Prometheus client, cobra and tracing are not among them, and
// must not get in through another module's back door.
var allowedModules = []string{
	"github.com/containernetworking/cni",
	"github.com/containernetworking/plugins",
	"github.com/coreos/go-iptables",
	"github.com/google/nftables",
	"github.com/mdlayher/netlink",
	"github.com/mdlayher/socket",
	"github.com/vishvananda/netlink",
	"github.com/vishvananda/netns",
	"go.etcd.io/bbolt",
	"go4.org/netipx",
	"golang.org/x/net",
	"golang.org/x/sync",
	"golang.org/x/sys",
}

// ownModule's packages that are for the operator, for tests or for the demo.
const ownModule = "github.com/native-vmss/native-vmss"

var refusedPackages = []string{
	"crypto/tls", // 3.4 MB and a fifth of a process's start; pkg/metadata does without
	"net/http",
	ownModule + "/internal/fakeazure",
	ownModule + "/internal/lab",
	ownModule + "/pkg/accounting/export", // the Prometheus client: only vmssctl shows metrics
	ownModule + "/pkg/fleet",
}

func TestPlugins_dependencies(t *testing.T) {
	for _, name := range binaries {
		t.Run(name, func(t *testing.T) {
			for line := range strings.Lines(dependencies(t, "./"+name)) {
				module, pkg, _ := strings.Cut(strings.TrimSpace(line), " ")
				if module != ownModule && module != "std" && !slices.Contains(allowedModules, module) {
					t.Errorf("links %s of module %s, which is not on the list", pkg, module)
				}
				if slices.ContainsFunc(refusedPackages, func(p string) bool { return pkg == p || strings.HasPrefix(pkg, p+"/") }) {
					t.Errorf("links %s", pkg)
				}
			}
		})
	}
}

// dependencies lists "module package" of everything that a main links, itself included; the standard library's module is "std".
func dependencies(t *testing.T, pkg string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{else}}std{{end}} {{.ImportPath}}", pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v\n%s", pkg, err, &stderr)
	}
	if len(out) == 0 {
		t.Fatalf("go list -deps %s lists nothing", pkg)
	}
	return string(out)
}

func TestPlugins_size(t *testing.T) {
	for _, name := range binaries {
		size := len(readBinary(t, "bin", name))
		t.Logf("%s: %.1f MB", name, float64(size)/(1<<20))
		if size > maxSize {
			t.Errorf("%s has %d bytes, the limit is %d", name, size, maxSize)
		}
	}
}

func TestPlugins_static(t *testing.T) {
	for _, name := range binaries {
		f, err := elf.NewFile(bytes.NewReader(readBinary(t, "bin", name)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
			t.Errorf("%s needs libraries %v (%v)", name, libs, err)
		}
	}
}

// A shipped binary has no failpoints: the variable's name is in the test build, and not in it.
func TestPlugins_failpointsOnlyInTheirBuild(t *testing.T) {
	variable := []byte("NVT_FAILPOINT")
	for _, name := range binaries {
		if bytes.Contains(readBinary(t, "bin", name), variable) {
			t.Errorf("bin/%s knows %s", name, variable)
		}
		if !bytes.Contains(readBinary(t, "bin/failpoint", name), variable) {
			t.Errorf("bin/failpoint/%s does not know %s", name, variable)
		}
	}
}

func readBinary(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", dir, name))
	if err != nil {
		t.Fatalf("%v (make build bin/failpoint makes it)", err)
	}
	return b
}
