package accounting

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

// part is the variable that makes the test's program one of the processes of a test.
const part = "ACCOUNTING_TEST_PART"

func again(test, is string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), part+"="+is)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}

const rounds = 12

// Three processes apply the same, start and stop pods and read, all at the same time: nothing fails, doubles or is left over.
func TestNetnsIPTables_processes(t *testing.T) {
	conf := testConf()
	stay := []Subject{pod(1, "stays"), pod(2, "stays-too")}
	churn := func(is string) []Subject {
		return []Subject{pod(10+int(is[0]-'a')*10, is), pod(11+int(is[0]-'a')*10, is)}
	}
	all := append(append(append([]Subject{}, stay...), churn("a")...), churn("b")...)
	if is := os.Getenv(part); is != "" {
		b := newIPTables(t)
		for range rounds {
			apply(t, b, conf, all...)
			for _, s := range churn(is) {
				start(t, b, conf, s)
				read(t, b)
				if _, err := b.Stop(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
		}
		return
	}
	forFlavours(t, func(t *testing.T, flavour string) {
		ns := nstest.New(t)
		var running []*exec.Cmd
		for _, is := range []string{"a", "b"} {
			cmd := again("TestNetnsIPTables_processes", is)
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(out.String())
				}
			})
			running = append(running, cmd)
		}
		for _, cmd := range running {
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			return
		}
		b := newIPTables(t)
		if _, doubted := apply(t, b, conf, stay...); len(doubted) != 0 {
			t.Errorf("doubted %v", doubted)
		}
		got := rules(t, ns, flavour)
		if err := b.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		apply(t, b, conf, stay...)
		if want := rules(t, ns, flavour); len(got) != len(want) {
			t.Errorf("%d rules:\n%s\nwant %d:\n%s", len(got), strings.Join(got, "\n"), len(want), strings.Join(want, "\n"))
		}
	})
}

// Two changes that were planned for the same state don't both happen.
func TestNetnsIPTables_overtaken(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		ns := nstest.New(t)
		x := newIPTables(t).(*xtables)
		conf, s := testConf(), pod(1, "a")
		hand := func(line string) func() {
			return func() { ns.Run("iptables-" + flavour + " -t mangle " + line) }
		}
		tx, lead := dispatch(TX, s.Addr)
		for _, fault := range []struct {
			name string
			make func()
		}{
			{"nothing stands", func() {}},
			{"the rule that leads to the pod is gone", hand("-D " + tx + " " + lead)},
			{"and is there twice", hand("-A " + tx + " " + lead)},
			{"a hook is gone", hand("-D FORWARD -m devgroup --src-group 28278 -j " + chainTX)},
			{"and is there twice", hand("-A FORWARD -m devgroup --src-group 28278 -j " + chainTX)},
		} {
			fault.make()
			have, err := x.tool.save(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			first, second := planAll(have, nil, conf, []Subject{s}), planAll(have, nil, conf, []Subject{s})
			if err := x.tool.restore(t.Context(), first.text()); err != nil {
				t.Fatalf("%s: %v", fault.name, err)
			}
			if err := x.tool.restore(t.Context(), second.text()); err == nil {
				t.Errorf("%s: the second plan went through:\n%s", fault.name, second.text())
			}
			if changed, _ := apply(t, x, conf, s); len(changed) != 0 {
				t.Errorf("%s: left to do: %v", fault.name, changed)
			}
		}
	})
}

// The tool dies with us: no transaction comes after our end.
func TestNetnsIPTables_killed(t *testing.T) {
	if os.Getenv(part) != "" {
		_, _ = newIPTables(t).Read(t.Context())
		return
	}
	dir := usePath(t, "nft")
	nstest.New(t)
	fifo := filepath.Join(dir, "pid")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	wrapper(t, dir, "iptables-save", "[ \"$1\" = -V ] && exec iptables-nft-save -V\necho $$ > "+fifo+"\nexec sleep 1000")
	cmd := again("TestNetnsIPTables_killed", "reader")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // of this very process, if it still is
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
	if n != 1 || err != nil {
		t.Errorf("the tool lives on after its caller was killed: %d, %v", n, err)
	}
}

func BenchmarkNetnsIPTables(b *testing.B) {
	for _, flavour := range flavours {
		for _, n := range []int{30, 250} {
			b.Run(fmt.Sprintf("%s/%d", flavour, n), func(b *testing.B) {
				usePath(b, flavour)
				conf := testConf()
				var subjects []Subject
				for i := range n {
					subjects = append(subjects, pod(i+1, fmt.Sprintf("web-%d", i)))
				}
				last := subjects[n-1]
				for _, of := range []struct {
					name string
					run  func(x Backend, turn int) error
				}{
					{"start", func(x Backend, turn int) error { // of another pod with the same address
						last.Pod = fmt.Sprint("pod-", turn)
						_, err := x.Start(b.Context(), conf, last)
						return err
					}},
					{"stop-start", func(x Backend, _ int) error {
						_, err := x.Stop(b.Context(), last)
						_, err2 := x.Start(b.Context(), conf, last)
						return errors.Join(err, err2)
					}},
					{"read", func(x Backend, _ int) error { _, err := x.Read(b.Context()); return err }},
					{"apply-nothing", func(x Backend, _ int) error { _, _, err := x.Apply(b.Context(), conf, subjects); return err }},
				} {
					b.Run(of.name, func(b *testing.B) {
						nstest.New(b) // here: each benchmark runs on a thread of its own
						x := newIPTables(b)
						apply(b, x, conf, subjects...)
						turn := 0
						for b.Loop() {
							turn++
							if err := of.run(x, turn); err != nil {
								b.Fatal(err)
							}
						}
					})
				}
			})
		}
	}
}
