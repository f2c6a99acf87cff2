package netns

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// suitePatience is for all specs of one suite.
const suitePatience = 5 * time.Minute

// suite is one of containernetworking/plugins, in which our programs stand for ptp (hack/suites.sh says how).
type suite struct {
	folder string
	focus  string // a suite's other specs don't touch our programs
	node   bool   // the suite takes the namespace that it runs in for the machine; else it makes one for each spec
	least  int    // specs that have to run, lest a new release's silence counts as success
}

// Others' suites, with our programs in the place of those they are written for. A spec passes, or differs.txt says why it can't.
// Not beside the other tests: one of those fills the kernel's neighbour table, which all namespaces share, and a suite tries
// nothing twice.
func TestNetnsSuites(t *testing.T) {
	suites := map[string]suite{
		"ptp":          {folder: "plugins/main/ptp", least: 56},
		"portmap":      {folder: "plugins/meta/portmap", focus: "portmap integration tests", node: true, least: 8},
		"portmap-vmss": {folder: "plugins/meta/portmap-vmss", focus: "portmap integration tests", node: true, least: 8},
		"bandwidth":    {folder: "plugins/meta/bandwidth", focus: "when chaining bandwidth plugin with PTP", least: 4},
		"integration":  {folder: "integration", least: 3},
	}
	differs := suiteDiffers(t)
	for name := range differs {
		if _, known := suites[name]; !known {
			t.Errorf("differs.txt: no suite %q", name)
		}
	}
	each(t, suites, func(t *testing.T, s suite) {
		name := filepath.Base(t.Name())
		s.judge(t, name, s.run(t), differs[name])
	})
}

// spec is one test of a suite in its report.
type spec struct {
	LeafNodeType, LeafNodeText, State string
	Failure                           struct{ Message string }
	CapturedGinkgoWriterOutput        string
}

// run gives the specs that were run.
func (s suite) run(t *testing.T) []spec {
	dir := filepath.Join(filepath.Dir(program(t, "native-vmss")), "suites", s.folder)
	if _, err := os.Stat(filepath.Join(dir, "suite.test")); err != nil {
		t.Fatalf("%v: run 'hack/suites.sh' in the root of the clone first", err)
	}
	report := filepath.Join(t.TempDir(), "report.json")
	ctx, cancel := context.WithTimeout(context.Background(), suitePatience)
	defer cancel()
	// The suite's namespaces and processes end with it, however it ends.
	cmd := s.machine(t).Command(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", `mount -t tmpfs tmpfs /run/netns && exec ./suite.test "$@"`, "sh",
		"-ginkgo.no-color", "-ginkgo.timeout="+suitePatience.String(), "-ginkgo.focus="+s.focus, "-ginkgo.json-report="+report)
	bin := filepath.Dir(program(t, "native-vmss"))
	peers := filepath.Dir(peer(t, "host-local"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SUITE_CNI_PATH="+bin+":"+peers, "GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT=60s",
		"PATH="+strings.Join([]string{bin, peers, filepath.Dir(peerOf(t, "cnitool-1.3.0", "cnitool")), os.Getenv("PATH")}, ":"))
	out, runErr := cmd.CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v, %v\n%s", runErr, err, out)
	}
	var reports []struct{ SpecReports []spec }
	if err := json.Unmarshal(text, &reports); err != nil || len(reports) != 1 {
		t.Fatalf("report of %d suites: %v\n%s", len(reports), err, out)
	}
	specs := slices.DeleteFunc(reports[0].SpecReports, func(r spec) bool { return r.State == "skipped" })
	for _, r := range specs {
		if r.LeafNodeType != "It" && r.State != "passed" {
			t.Fatalf("%s %s\n%s", r.LeafNodeType, r.State, out)
		}
	}
	return slices.DeleteFunc(specs, func(r spec) bool { return r.LeafNodeType != "It" })
}

// machine is a node, or the cloud around those that the suite makes.
func (s suite) machine(t *testing.T) *lab.Node {
	if s.node {
		return newStage(t, poolOf(20)).Node
	}
	cloud, err := lab.ForTest(t).Node("cloud")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{lab.MetadataService, lab.SimpleInternet} {
		if err := cloud.AddAddr("lo", netip.PrefixFrom(a, 32)); err != nil {
			t.Fatal(err)
		}
	}
	if err := cloud.ServeHTTP(netip.AddrPortFrom(lab.MetadataService, 80), http.HandlerFunc(suiteMetadata)); err != nil {
		t.Fatal(err)
	}
	return cloud
}

// suiteMetadata knows who asks by the numbering of testdata/suites/node_test.go.
func suiteMetadata(w http.ResponseWriter, r *http.Request) {
	asker, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	subnet := netip.PrefixFrom(asker.Addr(), 24).Masked()
	lab.DocumentHandler(lab.NetworkDocument(lab.MetadataNIC{
		MAC: fmt.Sprintf("02000A14%02X04", asker.Addr().As4()[2]), Addrs: []netip.Addr{asker.Addr()}, Subnet: subnet,
	})).ServeHTTP(w, r)
}

// judge wants each spec to pass, or to fail in the way that differs.txt foretells.
func (s suite) judge(t *testing.T, name string, specs []spec, differs map[string]string) {
	t.Helper()
	passed, foretold := 0, 0
	for _, r := range specs {
		want, listed := differs[r.LeafNodeText]
		delete(differs, r.LeafNodeText)
		switch {
		case r.State == "passed" && listed:
			t.Errorf("%q passes: take it out of differs.txt", r.LeafNodeText)
		case r.State == "passed":
			passed++
		case listed && strings.Contains(r.Failure.Message, want):
			foretold++
		default:
			t.Errorf("%q %s: %s\n%s", r.LeafNodeText, r.State, r.Failure.Message, r.CapturedGinkgoWriterOutput)
		}
	}
	for spec := range differs {
		t.Errorf("differs.txt: %s has no spec %q", name, spec)
	}
	if len(specs) < s.least {
		t.Errorf("%d specs ran, want at least %d", len(specs), s.least)
	}
	t.Logf("%s: %d specs ran, %d passed, %d differ by design", name, len(specs), passed, foretold)
}

// suiteDiffers is differs.txt: suite -> spec -> what its failure says.
func suiteDiffers(t *testing.T) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "suites", "differs.txt"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]string{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		f := strings.Split(strings.TrimSpace(line), " | ")
		if len(f) != 4 || slices.Contains(f, "") {
			t.Fatalf("differs.txt: want suite | spec | what its failure says | reason, got %q", line)
		}
		if out[f[0]] == nil {
			out[f[0]] = map[string]string{}
		}
		out[f[0]][f[1]] = f[2]
	}
	return out
}
