package netns

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// damageObstacle is what keeps the store from being used, and what every command has to say about it.
type damageObstacle struct {
	make, undo string
	code       uint
	words      []string
}

// What isn't ours to move out of the way stays where it is. Every command says which path and what is wrong; a pod that is deleted
// meanwhile is unwired all the same, and its DEL fails until it can be noted. Afterwards the store is the one that it was.
func TestNetnsDamage_obstacles(t *testing.T) {
	t.Parallel()
	const db, lock = stateDir + "/ipam.db", stateDir + "/ipam.lock"
	away := func(path, obstacle string) damageObstacle {
		return damageObstacle{make: "mv " + path + " /run/kept; " + obstacle, undo: "rm -r " + path + "; mv /run/kept " + path}
	}
	says := func(o damageObstacle, words ...string) damageObstacle {
		o.code, o.words = 5, words
		return o
	}
	each(t, map[string]damageObstacle{
		"directory":             says(away(db, "mkdir "+db+"; touch "+db+"/x"), db, "is a directory"),
		"fifo":                  says(away(db, "mkfifo "+db), db, "not a regular file"),
		"link_to_the_real_one":  says(away(db, "ln -s /run/kept "+db), db, "not a regular file"),
		"link_to_nothing":       says(away(db, "ln -s /run/nothing "+db), db, "not a regular file"),
		"directory_as_the_lock": says(away(lock, "mkdir "+lock), lock, "is a directory"),
		"link_as_the_lock":      says(away(lock, "ln -s /run/kept "+lock), lock, "is a symbolic link"),
		"fifo_as_the_lock":      says(away(lock, "mkfifo "+lock), lock, "not a regular file"),
		"lock_writable_by_all":  says(damageObstacle{make: "chmod 666 " + lock, undo: "chmod 600 " + lock}, lock, "0666"),
		"another_owner":         says(damageObstacle{make: "chown 1234 " + db, undo: "chown 0 " + db}, db, "owned by uid 1234"),
		"writable_by_all":       says(damageObstacle{make: "chmod 666 " + db, undo: "chmod 600 " + db}, db, "0666", "lets others write"),
		"state_directory_of_another_owner": says(damageObstacle{
			make: "chown 1234 " + stateDir, undo: "chown 0 " + stateDir,
		}, stateDir, "its directory", "owned by uid 1234"),
		"state_directory_writable_by_a_group": says(damageObstacle{
			make: "chmod 770 " + stateDir, undo: "chmod 700 " + stateDir,
		}, stateDir, "its directory", "0770", "lets others write"),
		"state_directory_is_a_file": says(damageObstacle{
			make: "mv " + stateDir + " /run/kept; echo text >" + stateDir, undo: "rm " + stateDir + "; mv /run/kept " + stateDir,
		}, stateDir, "not a directory"),
		"held_by_a_stopped_process": {
			make: "flock " + db + " sleep 300 >/dev/null 2>&1 & echo $! >/run/holder; sleep 0.2", code: 11, words: []string{db, "held by"},
		},
	}, func(t *testing.T, c damageObstacle) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		stays, a := s.pathPod("stays")
		ends, b := s.pathPod("ends")
		leases := s.pathLeases()
		s.obstacle(t, &c)
		before := s.sh("ls -lR " + stateDir)

		p := s.Pod(t, "p")
		s.add("p", p).fails(c.code, c.words...)
		s.notWired(p, "p")
		if c.code == 11 {
			s.status().ok() // busy is not broken
		} else {
			s.status().fails(50, c.words...)
		}
		s.check("stays", stays, a).fails(c.code, c.words...)
		s.gc("stays", "ends").fails(c.code, c.words...)
		for _, args := range [][]string{{"ipam", "list"}, {"node", "repair"}} {
			if out, err := s.ctl(args...); err == nil || !strings.Contains(out, c.words[0]) || !strings.Contains(out, c.words[1]) {
				t.Errorf("%v: %v: %s", args, err, out)
			}
		}
		s.del("ends", ends).fails(c.code, c.words...)
		s.podEmpty(ends, "after DEL")
		s.del("p", p)
		if now := s.sh("ls -lR " + stateDir); now != before {
			t.Errorf("state directory: %s\nwas: %s", now, before)
		}
		s.reaches(stays, a.IP)

		s.sh(c.undo)
		if now := s.pathLeases(); !maps.Equal(now, leases) {
			t.Errorf("leases %v, before %v", now, leases)
		}
		s.del("ends", ends).ok()
		s.del("p", p).ok()
		s.check("stays", stays, a).ok()
		if now := s.add("p", p).ok(); now.IP == a.IP || now.IP == b.IP {
			t.Errorf("p has %s", now.IP)
		}
		s.del("p", p).ok()
		if held := s.held(); !slices.Equal(held, []netip.Addr{a.IP}) {
			t.Errorf("leased %v, want %s", held, a.IP)
		}
	})
}

// obstacle puts it there. A process that holds the file is stopped, and named by its pid from then on.
func (s *stage) obstacle(t *testing.T, c *damageObstacle) {
	t.Helper()
	s.sh(c.make)
	if c.undo != "" {
		return
	}
	pid, err := strconv.Atoi(s.sh("cat /run/holder"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.words, c.undo = append(c.words, "pid "+strconv.Itoa(pid)), "kill -KILL $(cat /run/holder) $(pgrep -P $(cat /run/holder))"
}

// A damaged store on a disk that takes nothing is no empty store: nothing is given out until it can be rebuilt from the kernel, and
// then every live pod has what it had.
func TestNetnsDamage_on_a_disk_that_takes_nothing(t *testing.T) {
	t.Parallel()
	const db = stateDir + "/ipam.db"
	type disk struct{ make, undo, path, word string }
	disks := map[string]disk{
		"read_only": {"mount -o remount,ro " + stateDir, "mount -o remount,rw " + stateDir, stateDir, "read-only"},
		"full": {
			"cat /dev/zero >" + stateDir + "/fill 2>/dev/null || true", "rm " + stateDir + "/fill", db, "no space left",
		},
	}
	for damageName, damage := range map[string]string{"cut": "truncate -s 8192 " + db, "emptied": ": >" + db, "removed": "rm " + db} {
		each(t, damageNamed(damageName, disks), func(t *testing.T, c disk) {
			s := onSmallDisk(t, "size=300k")
			s.settle()
			stays, a := s.pathPod("stays")
			ends, b := s.pathPod("ends")
			leases := s.pathLeases()
			s.sh(damage + "; " + c.make)
			p := s.Pod(t, "p")
			for range 2 { // the second one finds what the first one left
				s.add("p", p).fails(5, c.path, c.word)
				s.notWired(p, "p")
				s.status().fails(50, c.path, c.word)
			}
			s.check("stays", stays, a).fails(5, c.path, c.word)
			s.gc("stays", "ends").fails(5, c.path, c.word)
			s.del("ends", ends).fails(5, c.path, c.word)
			s.podEmpty(ends, "after DEL")
			s.reaches(stays, a.IP)

			s.sh(c.undo)
			s.del("ends", ends).ok()
			got := s.pathRetried("p", p).ok()
			if got.IP == a.IP {
				t.Errorf("p has %s, which a live pod holds", got.IP)
			}
			now := s.pathLeases()
			delete(now, got.IP.String())
			delete(leases, b.IP.String()) // its link was gone when the store was rebuilt
			if !maps.Equal(now, leases) {
				t.Errorf("leases %v beside p's, before %v", now, leases)
			}
			s.check("stays", stays, a).ok()
			s.reaches(stays, a.IP)
			s.consistent()
			s.del("p", p).ok()
			s.del("stays", stays).ok()
			s.clean("after the last DEL")
		})
	}
}

// damageNamed puts a word before each name.
func damageNamed[T any](word string, cases map[string]T) map[string]T {
	out := map[string]T{}
	for name, c := range cases {
		out[word+"_"+name] = c
	}
	return out
}
