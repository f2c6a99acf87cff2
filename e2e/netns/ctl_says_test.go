package netns

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// mends runs a repair that has something to mend, and one that hasn't: each says so.
func (s *stage) mends() {
	s.t.Helper()
	if out := s.mustCtl("node", "repair"); !strings.Contains(out, "changed: ") || strings.Contains(out, "nothing to do") {
		s.t.Errorf("the repair that mends says %q", out)
	}
	if out := s.mustCtl("node", "repair"); !strings.HasPrefix(out, "nothing to do (pods looked at: ") {
		s.t.Errorf("the repair after it says %q", out)
	}
}

// said leaves the log out, which goes to standard error.
func said(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "time=") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// What was put back is named, one line for each thing.
func TestNetnsCtl_repair_names_what_it_changed(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	_, a := s.pathPod("c1")
	for damage, want := range map[string]string{
		"ip rule del pref 510":                                       "changed: policy rule 510: to 10.20.0.0/24 lookup 28201 added\n",
		"ip route flush table 28201":                                 "changed: route 10.20.0.0/24 added to table 28201\n",
		"nft flush chain ip native_vmss forward":                     "changed: table ip native_vmss written again: it was not as it should be\n",
		"nft add rule ip native_vmss forward accept":                 "changed: table ip native_vmss written again: it was not as it should be\n",
		"nft delete table ip native_vmss":                            "changed: table ip native_vmss made: it was missing\n",
		"ip route del " + a.IP.String():                              "changed: route of " + a.IP.String() + " to " + a.HostLink + " put back\n",
		"sysctl -qw net.ipv4.conf.eth0.forwarding=0":                 "changed: sysctl net/ipv4/conf/eth0/forwarding set to 1\n",
		"sysctl -qw net.ipv6.conf." + a.HostLink + ".disable_ipv6=0": "changed: put right: sysctl net/ipv6/conf/" + a.HostLink + "/disable_ipv6 is 0 instead of 1\n",
		"ip link set " + a.HostLink + " alias ''":                    "changed: mark of " + a.HostLink + ", the link of " + a.IP.String() + ", put back\n",
	} {
		s.sh(damage)
		if out := said(s.mustCtl("node", "repair")); out != want {
			t.Errorf("%s: repair says\n%swant\n%s", damage, out, want)
		}
		if out := s.mustCtl("node", "repair"); out != "nothing to do (pods looked at: 1)\n" {
			t.Errorf("%s: a second repair says %q", damage, out)
		}
	}
	s.sh("ip rule del pref 510; ip link del " + a.HostLink)
	var doc struct {
		Changed []string
		Pods    int
		Waiting []struct {
			Address   string
			InSeconds int
		}
	}
	out := s.mustCtl("node", "repair", "-o", "json")
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Changed) != 1 || doc.Pods != 0 || len(doc.Waiting) != 1 ||
		doc.Waiting[0].Address != a.IP.String() || doc.Waiting[0].InSeconds != 60 {
		t.Errorf("repair -o json: %v: %s", err, out)
	}
}

// A repair that can't begin claims nothing, and says why once.
func TestNetnsCtl_repair_that_fails_claims_nothing(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	out, err := s.ctl("--state-dir", "/proc/1/x", "node", "repair")
	if err == nil || strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, "vmssctl: ") || !strings.Contains(out, "/proc/1/x") {
		t.Errorf("%v: %q", err, out)
	}
}

// Who isn't root is told so in one line, by every command.
func TestNetnsCtl_not_root(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "nvt-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	text, err := os.ReadFile(program(t, "vmssctl"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "vmssctl")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"node repair", "node repair --every 1s", "node prepare", "node prepare --dry-run", "node clean", "ipam list"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience) // a repair that went on would go on for good
		defer cancel()
		cmd := exec.CommandContext(ctx, path, strings.Fields(args)...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err == nil || out.String() != "vmssctl: run as root\n" {
			t.Errorf("%s: %v: %q", args, err, out.String())
		}
	}
}

// An address of a pod that is on a NIC's link too: CHECK and repair say what helps, and it does.
func TestNetnsCtl_on_host_link_has_a_way_out(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	p, a := s.pathPod("c1")
	s.sh("ip addr add " + a.IP.String() + "/32 dev eth0")
	const way = "vmssctl node prepare --force"
	s.check("c1", p, a).fails(103, "on-host-link", way)
	if out, err := s.ctl("node", "repair"); err == nil || !strings.Contains(out, "on-host-link") || !strings.Contains(out, way) {
		t.Errorf("repair: %v: %s", err, out)
	}
	s.mustCtl("node", "prepare", "--force", "--root", t.TempDir())
	s.check("c1", p, a).ok()

	// One that nobody has is blocked when somebody wants it; with the pod beside it nothing but --force helps.
	s.ipam["refresh"] = "1s"
	for _, free := range s.pool[1:] {
		s.sh("ip addr add " + free.String() + "/32 dev eth0")
	}
	s.add("c2", s.Pod(t, "c2")).fails(11, "on-host-link", way)
	if out := s.mustCtl("node", "repair"); !strings.Contains(out, s.pool[1].String()) || !strings.Contains(out, way) {
		t.Errorf("repair says nothing of blocked addresses: %s", out)
	}
	if out, err := s.ctl("node", "prepare", "--root", t.TempDir()); err == nil || !strings.Contains(out, "--force") {
		t.Errorf("prepare without --force: %v: %s", err, out)
	}
	s.mustCtl("node", "prepare", "--force", "--root", t.TempDir())
	s.add("c3", s.Pod(t, "c3")).ok()
}

// What is broken inside a pod repair neither mends nor names, as the page says; CHECK names it, and a new pod is the cure.
func TestNetnsCtl_inside_a_pod(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	p, a := s.pathPod("c1")
	s.in(p, "ip route flush table main")
	if out := s.mustCtl("node", "repair"); !strings.Contains(out, "nothing to do") {
		t.Errorf("repair: %s", out)
	}
	s.check("c1", p, a).fails(103, "pod")
	s.del("c1", p).ok()
	q, b := s.pathPod("c2")
	s.reaches(q, b.IP)
}

// A store that was rebuilt knows neither NIC nor, of a caller that named no pod, a name: a dash, and nothing in JSON.
func TestNetnsCtl_list_of_a_rebuilt_store(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.add("c1", s.Pod(t, "c1"), podNamed("", "")).ok()
	s.add("c2", s.Pod(t, "c2"), podNamed("team-a", "web-0")).ok()
	s.sh(": >" + stateDir + "/ipam.db")
	told, list, _ := strings.Cut(s.mustCtl("ipam", "list"), "ADDRESS ")
	if !strings.Contains(told, "totals of traffic start again") {
		t.Errorf("said %q of the totals, which are lost", told)
	}
	rows := strings.Split(strings.TrimSpace(list), "\n")
	if len(rows) != 3 {
		t.Fatalf("rows %q", rows)
	}
	named := 0
	for _, r := range rows[1:] {
		f := strings.Fields(r)
		if len(f) != 9 || f[1] != "leased,absent" || f[3] != "-" {
			t.Errorf("row %q", r)
			continue
		}
		switch {
		case f[4] == "team-a" && f[5] == "web-0":
			named++
		case f[4] != "-" || f[5] != "-":
			t.Errorf("row %q", r)
		}
	}
	if named != 1 {
		t.Errorf("%q: team-a/web-0 is named %d times", rows, named)
	}
	if out := s.mustCtl("ipam", "list", "-o", "json"); strings.Contains(out, `"nic"`) || strings.Contains(out, `"/"`) {
		t.Errorf("JSON has what isn't known: %s", out)
	}
}

// Clean refuses while a pod lives or a runtime may call, and takes away what is ours and nothing else.
func TestNetnsCtl_clean(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.ipam["cooldown"] = "1ms"
	root := t.TempDir()
	nodewide := func() string {
		return s.sh("ip rule; ip route show table all proto " + pathProtocol + "; nft list tables ip")
	}
	before := nodewide()
	s.mustCtl("node", "prepare", "--root", root)
	p, _ := s.pathPod("c1")
	stands := nodewide()
	if stands == before {
		t.Fatal("an ADD leaves nothing to clean")
	}
	refuses := func(words string) {
		t.Helper()
		out, err := s.ctl("node", "clean", "--root", root)
		if err == nil || !strings.Contains(out, words) {
			t.Errorf("clean: %v: %q, want %q", err, out, words)
		}
	}
	refuses("pods have addresses here: 1")
	conf := filepath.Join(root, "etc/cni/net.d/10-x.conflist")
	if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, []byte(shippedText(t, "10-native-vmss.conflist")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.sh("rm " + stateDir + "/ipam.db") // the kernel knows it too
	refuses(conf)
	if err := os.Remove(conf); err != nil {
		t.Fatal(err)
	}
	refuses("pods have addresses here: 1")
	if now := nodewide(); now != stands {
		t.Errorf("a clean that refused changed\n%s\nto\n%s", stands, now)
	}
	s.del("c1", p).ok()
	s.sh("nft add table ip others; ip rule add pref 77 to 10.99.0.0/16 lookup main")
	others := strings.Replace(before, "0:\tfrom all lookup local\n", "0:\tfrom all lookup local\n77:\tfrom all to 10.99.0.0/16 lookup main\n", 1)
	mine := filepath.Join(root, "etc/cloud/cloud.cfg.d/99-native-vmss.cfg")
	if err := os.WriteFile(mine, []byte("# changed by hand\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := s.mustCtl("node", "clean", "--root", root)
	for _, want := range []string{
		"done: policy rule deleted: ", "done: remove table ip native_vmss\n", "left: leave " + mine,
		"done: remove " + filepath.Join(root, "etc/systemd/networkd.conf.d/10-native-vmss.conf"),
	} {
		if !strings.Contains(out, want) {
			t.Errorf("clean says\n%swhich lacks %q", out, want)
		}
	}
	if now, want := nodewide(), others+"\ntable ip others"; now != want {
		t.Errorf("after clean\n%s\nwant\n%s", now, want)
	}
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	if out := s.mustCtl("node", "clean", "--root", root); out != "nothing to do\n" {
		t.Errorf("a second clean says %q", out)
	}
	q, b := s.pathPod("c2")
	s.reaches(q, b.IP)
}
