package netns

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Names that no API server gives, and a runtime may all the same: the pod works, what is stored of it stays readable.
func TestNetnsPath_hostile_names(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(20))
	s.ipam["cooldown"] = "1ms" // a rebuild lets every address cool
	s.settle()
	before := s.snapshot()
	for name, pod := range map[string][2]string{
		"name_of_300_characters":       {"team-a", strings.Repeat("n", 300)},
		"namespace_of_5000_characters": {strings.Repeat("s", 5000), "web-0"},
		"control_characters":           {"team\x01\x1b[2J", "web\x7f\x00"[:4]},
		"newlines_and_tabs":            {"team\nnvm1 10.20.0.99", "web\t0\r\n"},
		"quotes_and_backslashes":       {`te"am'`, `we\b"` + "`$(id)"},
		"blanks":                       {"team a", " web 0 "},
		"not_UTF8":                     {"team\xff\xfe", "web\xc3\x28"},
		"wide_characters":              {"团队", "ｗｅｂ-0"},
		"a_slash_of_its_own":           {"team/a", "web/0"},
		"empty":                        {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.pathAs(t)
			p := s.Pod(t, "p")
			defer p.Close()
			a := s.add("c", p, podNamed(pod[0], pod[1])).ok()
			s.reaches(p, a.IP)
			links := pathJSON[[]struct{ IfAlias string }](t, s.sh("ip -j link show dev "+a.HostLink))
			alias := links[0].IfAlias
			f := strings.Split(alias, " ")
			if len(f) != 7 || f[0] != "nvm1" || f[1] != a.IP.String() || len(alias) > 255 || strings.ContainsFunc(alias, func(r rune) bool {
				return r < ' ' || r > '~'
			}) {
				t.Errorf("alias %q", alias)
			}
			s.check("c", p, a).ok()
			pathJSON[[]pathRow](t, s.mustCtl("ipam", "list", "-o", "json"))
			if out := s.mustCtl("ipam", "list"); strings.Count(out, "\n") != 2 || strings.ContainsAny(out, "\x1b\x00\x01\x7f") {
				t.Errorf("the table is torn or carries control characters:\n%q", out)
			}
			// The link is ours by its alias: a lost store finds it.
			s.sh(": >" + stateDir + "/ipam.db")
			if got := s.pathLeases(); len(got) != 1 || got[a.IP.String()] == 0 {
				t.Errorf("after the store was lost: %v", got)
			}
			s.del("c", p).ok()
			s.noLeak(before)
		})
	}
}

// Input that can't be right is refused in one document that names what is wrong, before anything is made.
func TestNetnsPath_bad_input(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.ipam["cooldown"] = "1h" // no record changes by the time that all of this takes
	s.settle()
	p := s.Pod(t, "p")
	before, records := s.snapshot(), s.records()
	plain := filepath.Join(s.Dir, "plain")
	if err := os.WriteFile(plain, []byte("no namespace"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit edit
		code []uint
		word string
	}{
		"netns_is_the_nodes_own":         {withNetns("/proc/self/ns/net"), []uint{4}, "CNI_NETNS"},
		"netns_is_the_nodes_own_by_name": {withNetns(s.Node.Namespace.Path), []uint{4}, "CNI_NETNS"},
		"netns_is_a_plain_file":          {withNetns(plain), []uint{4}, "CNI_NETNS"},
		"netns_is_a_directory":           {withNetns("/proc"), []uint{4}, "CNI_NETNS"},
		"netns_is_a_mount_namespace":     {withNetns("/proc/self/ns/mnt"), []uint{4}, "CNI_NETNS"},
		"netns_is_a_fifo_that_nobody_writes": {func(c *lab.Call) {
			c.Netns = filepath.Join(s.Dir, "fifo")
			if err := syscall.Mkfifo(c.Netns, 0o600); err != nil {
				t.Fatal(err)
			}
		}, []uint{4}, "CNI_NETNS"},
		"netns_is_not_there":                   {withNetns("/run/netns/none"), []uint{3, 4}, "CNI_NETNS"},
		"stdin_of_2_MiB_of_blanks":             {withStdin(bytes.Repeat([]byte(" "), 2<<20)), []uint{6, 7}, ""},
		"stdin_of_2_MiB_in_one_string":         {withStdin([]byte(`{"cniVersion":"1.0.0","name":"` + strings.Repeat("n", 2<<20) + `"}`)), []uint{6, 7}, ""},
		"stdin_of_a_million_brackets":          {withStdin(bytes.Repeat([]byte("["), 1<<20)), []uint{6, 7}, ""},
		"stdin_empty":                          {withStdin(nil), []uint{6, 7}, ""},
		"stdin_is_a_list":                      {withStdin([]byte("[]")), []uint{6, 7}, ""},
		"stdin_not_UTF8":                       {withStdin([]byte("\xff\xfe{}")), []uint{6, 7}, ""},
		"an_interface_name_that_is_too_long":   {withIfName("eth0123456789012"), []uint{4}, "CNI_IFNAME"},
		"an_interface_name_with_a_slash":       {withIfName("eth/0"), []uint{4}, "CNI_IFNAME"},
		"an_interface_name_that_is_a_template": {withIfName("eth%d"), []uint{4}, "CNI_IFNAME"},
		"an_interface_name_of_the_kernels":     {withIfName("all"), []uint{4}, "CNI_IFNAME"},
		"a_container_id_with_a_path":           {func(c *lab.Call) { c.ContainerID = "../../etc" }, []uint{4}, "CNI_CONTAINERID"},
		"CNI_ARGS_of_64_KiB":                   {withArgs("IP=" + strings.Repeat("1", 64<<10)), []uint{4, 7}, "IP"},
		"a_state_directory_that_is_a_file":     {withStdin(s.pathWithIPAM("stateDir", plain)), []uint{5}, plain},
		"a_requested_address_of_another_node":  {withArgs("IgnoreUnknown=1;IP=10.20.0.99"), []uint{7}, "10.20.0.99"},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.pathAs(t)
			begin := time.Now()
			a := s.add("bad", p, c.edit)
			a.failsWith(c.code)
			if c.word != "" {
				a.says(c.word)
			}
			if len(a.Stdout) > 64<<10 {
				t.Errorf("an error of %d bytes", len(a.Stdout))
			}
			if d := time.Since(begin); d > 15*time.Second {
				t.Errorf("took %s", d)
			}
			s.unchanged(before)
			s.sameRecords(records)
		})
	}
	s.add("good", p).ok()
}

// pathWithIPAM is CF0 with one key of its ipam object changed.
func (s *stage) pathWithIPAM(key string, value any) []byte {
	c := *s
	c.ipam = map[string]any{"type": "ipam-vmss", "cooldown": "1s", key: value}
	return c.conf()
}

// An ADD whose answer nobody reads, or that is told to end, is undone.
func TestNetnsPath_interrupted(t *testing.T) {
	t.Parallel()
	t.Run("stdout_that_nobody_reads", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p := s.Pod(t, "p")
		if exit := s.pathUnread(s.call("ADD", "c1", p)); exit == 0 {
			t.Error("ADD succeeded though nobody could read its answer")
		}
		s.noLeak(before)
		s.add("c1", p).ok()
		s.del("c1", p).ok()
		s.noLeak(before)
	})
	for name, sig := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "SIGKILL": syscall.SIGKILL} {
		t.Run(name+"_during_a_slow_answer_of_metadata", func(t *testing.T) {
			t.Parallel()
			s := newStage(t, lab.SimpleOptions{})
			asked := make(chan struct{}, 100)
			good := lab.DocumentHandler(lab.NetworkDocument(s.NICs...))
			s.MD.HandleFunc(func(w http.ResponseWriter, r *http.Request) {
				asked <- struct{}{}
				select {
				case <-r.Context().Done():
				case <-time.After(20 * time.Second):
				}
				good.ServeHTTP(w, r)
			})
			before := s.snapshot()
			p := s.Pod(t, "p")
			c := s.call("ADD", "c1", p)
			cmd, wait := s.Node.StartPlugin(context.Background(), program(t, "native-vmss"), c)
			<-asked
			begin := time.Now()
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			o := wait()
			if d := time.Since(begin); d > 5*time.Second {
				t.Errorf("ended %s after the signal", d)
			}
			if sig != syscall.SIGKILL {
				if a := s.judge(c, o); a.Exit == 0 {
					t.Error("ADD succeeded")
				}
			}
			s.noLeakOnNewNode(before)
			s.MD.Handle(good)
			a := s.add("c1", p).ok()
			s.reaches(p, a.IP)
		})
	}
}

// pathUnread runs a call whose standard output is a pipe without a reader.
func (s *stage) pathUnread(c lab.Call) (exit int) {
	s.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	cmd := s.Node.Command(context.Background(), program(s.t, "native-vmss"))
	cmd.Env = []string{
		"CNI_COMMAND=" + c.Command, "CNI_CONTAINERID=" + c.ContainerID, "CNI_NETNS=" + c.Netns, "CNI_IFNAME=eth0",
		"CNI_ARGS=" + c.Args, "CNI_PATH=" + c.Path, "PATH=" + os.Getenv("PATH"),
	}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(c.Stdin), w
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode()
}
