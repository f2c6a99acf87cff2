//go:build failpoint

package accounting

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// nftKilled is the variable that makes the test binary do one thing, which may kill it.
const nftKilled = "NVT_NFT_KILLED"

// TestNFTKilled is no test: TestNetnsNFT_failpoint runs it.
func TestNFTKilled(t *testing.T) {
	what := os.Getenv(nftKilled)
	if what == "" {
		return
	}
	n := newNFT(t)
	if what == "start" {
		_, err := n.Start(t.Context(), nftConf(), nftSubject(nftPodA, 1))
		nftMust(t, err)
		return
	}
	_, _, err := n.Apply(t.Context(), nftConf(), append(nftSubjects(30), nftSubject(nftPodA, 1), nftSubject(nftPodB, 2)))
	nftMust(t, err)
}

// killed runs one thing in the node that dies, or fails, at a point; false when it didn't come so far.
func (l *nftLab) killed(what, point string) bool {
	l.t.Helper()
	err := l.node.Do(func() error {
		cmd := exec.Command(os.Args[0], "-test.run=^TestNFTKilled$")
		cmd.Env = append(os.Environ(), nftKilled+"="+what, "NVT_FAILPOINT="+point)
		return cmd.Run()
	})
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		l.t.Fatal(err)
	}
	return err != nil
}

// A kill or an error anywhere leaves a table that Apply completes, without a packet counted twice or a value lost.
func TestNetnsNFT_failpoint(t *testing.T) {
	l := newNFTLab(t)
	for _, what := range []string{"apply", "start", "apply again"} {
		for _, end := range []string{"nft-flush=kill", "nft-flush=error", "nft-read=kill"} {
			ends := 0
			for ; ; ends++ {
				l.before(what)
				if !l.killed(what, fmt.Sprintf("accounting.%s#%d", end, ends+1)) {
					break
				}
				l.after(what)
			}
			t.Logf("%s: %d times %s", what, ends, end)
			if ends == 0 {
				t.Errorf("%s: never %s", what, end)
			}
		}
	}
}

// before makes the state in which a thing is done: no table; one without the address; one whose rules are doubled.
func (l *nftLab) before(what string) {
	l.t.Helper()
	nftMust(l.t, l.n.Drop(l.t.Context()))
	if what == "apply" {
		return
	}
	subjects := nftSubjects(30)
	if what == "apply again" {
		subjects = append(subjects, l.subjects...)
	}
	_, _, err := l.n.Apply(l.t.Context(), l.conf, subjects)
	nftMust(l.t, err)
	if what == "apply again" {
		l.send(l.a, nftPodA, l.fabric, nftRemote, 3)
		l.node.Run("nft -f " + l.save())
	}
}

func (l *nftLab) after(what string) {
	l.t.Helper()
	before := l.values()
	_, _, err := l.n.Apply(l.t.Context(), l.conf, append(nftSubjects(30), l.subjects...))
	nftMust(l.t, err)
	if got := l.values(); fmt.Sprint(got) != fmt.Sprint(before) {
		l.t.Errorf("%s: values %v, were %v", what, got, before)
	}
	l.node.Run("nft reset counters table ip " + NFTTable)
	l.send(l.a, nftPodA, l.b, nftPodB, 2)
	l.want(map[string]string{nftPodA + " tx cluster": "256 2", nftPodB + " rx cluster": "256 2"})
}
