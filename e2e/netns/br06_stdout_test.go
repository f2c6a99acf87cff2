package netns

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// BR-06: exactly one JSON value on stdout, also when dying. The harness holds every run to that; what is left here is the
// reason in the text, the exit and that nothing leaks.

// (1) The log is as loud as it gets and its target unusable or the standard output itself.
func TestNetnsBR06_log_never_reaches_stdout(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{
		"1_target_stdout":                        "stdout",
		"1_target_dev_stdout":                    "/dev/stdout",
		"1_target_dev_fd_1":                      "/dev/fd/1",
		"1_target_proc_self_fd_1":                "/proc/self/fd/1",
		"1_target_in_a_missing_directory":        "/run/missing/native-vmss.log",
		"1_target_is_a_directory":                "/run",
		"1_target_on_a_full_disk":                "/run/full/native-vmss.log",
		"1_target_is_a_link_to_the_standard_out": "/run/link.log",
		"1_target_is_a_pipe_that_nobody_reads":   "/run/pipe.log",
	}, func(t *testing.T, target string) {
		s := newStage(t, poolOf(1))
		s.top["log"] = map[string]any{"level": "debug", "file": target}
		s.ipam["cooldown"] = "0s"
		s.sh(`mkdir /run/full && mount -t tmpfs -o size=16k tmpfs /run/full && (cat /dev/zero >/run/full/fill 2>/dev/null || true)
			ln -s /dev/stdout /run/link.log; mkfifo /run/pipe.log`)
		s.settle()
		before := s.snapshot()
		p1, p2 := s.Pod(t, "p1"), s.Pod(t, "p2")
		added := s.add("c1", p1).ok()
		s.reaches(p1, added.IP)
		s.add("c2", p2).fails(11, "1 total", "1 leased")
		s.status().ok() // full is no failure
		s.check("c1", p1, added).ok()
		s.del("c2", p2).ok()
		s.del("c1", p1).ok()
		s.noLeak(before)
	})
}

// (2) The IPAM plugin is somebody else's and dies in every way.
func TestNetnsBR06_reason_of_the_delegate_is_kept(t *testing.T) {
	t.Parallel()
	type delegate struct {
		add   string // the script's part for ADD; "" = no such file
		mode  os.FileMode
		codes []uint
		words []string
	}
	anyOf := []uint{6, 7, 104}
	each(t, map[string]delegate{
		"2_text_on_stderr_only":    {"echo 'pool database is on fire' >&2; exit 1", 0o755, anyOf, []string{"stub-ipam", "pool database is on fire"}},
		"2_success_with_nothing":   {"exit 0", 0o755, anyOf, []string{"stub-ipam"}},
		"2_result_without_address": {`echo '{"cniVersion":"1.1.0","ips":[]}'`, 0o755, anyOf, []string{"stub-ipam", "0 addresses"}},
		"2_absent":                 {"", 0, anyOf, []string{"stub-ipam"}},
		"2_not_executable":         {"exit 0", 0o644, anyOf, []string{"stub-ipam"}},
		"2_killed_by_a_signal":     {"kill -SEGV $$", 0o755, anyOf, []string{"stub-ipam", "segmentation fault"}},
		"2_own_error_is_passed_on": {`echo '{"cniVersion":"1.1.0","code":11,"msg":"pool is empty, says the stub"}'; exit 1`, 0o755, []uint{11}, []string{"pool is empty, says the stub"}},
		"2_more_than_one_document": {`echo '{"cniVersion":"1.1.0","ips":[]}{"code":7,"msg":"late"}'; exit 0`, 0o755, anyOf, []string{"stub-ipam"}},
	}, func(t *testing.T, c delegate) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if c.add != "" {
			script := "#!/bin/sh\necho \"$CNI_COMMAND\" >>/run/calls\n[ \"$CNI_COMMAND\" = ADD ] || exit 0\n" + c.add + "\n"
			if err := os.WriteFile(filepath.Join(dir, "stub-ipam"), []byte(script), c.mode); err != nil {
				t.Fatal(err)
			}
		}
		s.path, s.ipam = dir, map[string]any{"type": "stub-ipam"}
		before := s.snapshot()
		p := s.Pod(t, "p1")
		s.add("c1", p).failsWith(c.codes, c.words...)
		s.podIsBare(p)
		s.noLeak(before)
	})
}

// (3) The store is one of the damaged files of BR-32.
func TestNetnsBR06_damaged_store(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{
		"3_cut_to_100":   "truncate -s 100 $DB",
		"3_cut_to_4095":  "truncate -s 4095 $DB",
		"3_cut_to_4096":  "truncate -s 4096 $DB",
		"3_cut_to_8191":  "truncate -s 8191 $DB",
		"3_cut_to_8192":  "truncate -s 8192 $DB",
		"3_cut_to_12288": "truncate -s 12288 $DB",
		"3_cut_to_20480": "truncate -s 20480 $DB",
		"3_64_bytes_of_EE_in_each_tree_page": `for page in 2 3 4 5 6 7; do
			head -c 64 /dev/zero | tr '\0' '\356' | dd of=$DB bs=4096 seek=$page conv=notrunc status=none; done`,
		"3_all_zeros":   "size=$(stat -c %s $DB); head -c $size /dev/zero >$DB",
		"3_random":      "size=$(stat -c %s $DB); head -c $size /dev/urandom >$DB",
		"3_a_text_file": "echo 'this is no database' >$DB",
	}, func(t *testing.T, damage string) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p1, p2, p3 := s.Pod(t, "p1"), s.Pod(t, "p2"), s.Pod(t, "p3")
		one, two := s.add("c1", p1).ok(), s.add("c2", p2).ok()
		damaged := func() { s.sh("DB=" + stateDir + "/ipam.db; " + damage) }

		damaged()
		three := s.add("c3", p3)
		if three.OK() {
			if three.IP == one.IP || three.IP == two.IP {
				t.Fatalf("live address %s was given out again", three.IP)
			}
			s.reaches(p3, three.IP)
		} else {
			three.failsWith([]uint{5, 11})
		}
		damaged()
		s.status()
		damaged()
		s.gc("c1", "c2", "c3").ok()
		damaged()
		s.del("c1", p1).ok()
		if s.hasLink(one.HostLink) {
			t.Errorf("%s still stands after DEL", one.HostLink)
		}
		s.reaches(p2, two.IP)
		if held := s.held(); !slices.Contains(held, two.IP) {
			t.Errorf("live address %s is not leased in the new store, which has %v", two.IP, held)
		}
		if kept := s.sh("ls " + stateDir + " | grep -c damaged || true"); kept == "0" {
			t.Error("no damaged file was kept")
		}
		s.del("c2", p2).ok()
		s.del("c3", p3).ok()
		s.sh("rm -f " + stateDir + "/ipam.db.damaged-*") // kept for people on purpose
		s.noLeak(before)
	})
}
