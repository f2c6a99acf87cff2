package netns

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// nodeWideKeys are the keys that belong to the node, as README lists them: what a default is changed to, and both values as an
// error names them.
var nodeWideKeys = map[string]struct {
	conf  map[string]any
	texts [2]string // the default's and the other's
}{
	"nativeCIDRs": {
		conf:  map[string]any{"nativeCIDRs": []string{"10.0.0.0/8", lab.SimpleInternet.String() + "/32"}},
		texts: [2]string{`["10.0.0.0/8","100.64.0.0/10","172.16.0.0/12","192.168.0.0/16"]`, `["10.0.0.0/8","203.0.113.10/32"]`},
	},
	"masquerade": {conf: map[string]any{"masquerade": false}, texts: [2]string{"true", "false"}},
	"remotePods": {conf: map[string]any{"remotePods": "off"}, texts: [2]string{"pods", "off"}},
	"accounting.backend": {
		conf: map[string]any{"accounting": map[string]any{"backend": "none"}}, texts: [2]string{"nftables", "none"},
	},
	"accounting.classes": {
		conf:  map[string]any{"accounting": map[string]any{"classes": []any{map[string]any{"name": "hub", "cidrs": []string{"10.30.0.0/16"}}}}},
		texts: [2]string{"[]", `[{"name":"hub","cidrs":["10.30.0.0/16"]}]`},
	},
	"markMask":                  {conf: map[string]any{"markMask": "0x00ff0000"}, texts: [2]string{"0x0fff0000", "0x00ff0000"}},
	"metadataAccess.imds":       {conf: access("imds"), texts: [2]string{"deny", "allow"}},
	"metadataAccess.wireserver": {conf: access("wireserver"), texts: [2]string{"deny", "allow"}},
}

func access(service string) map[string]any {
	return map[string]any{"metadataAccess": map[string]any{service: "allow"}}
}

// pathKeyed is CF0 of a network of that name with more keys.
func (s *stage) pathKeyed(name string, keys map[string]any) *stage {
	c := *s
	c.top = map[string]any{"cniVersion": "1.1.0", "name": name, "type": "native-vmss"}
	for k, v := range keys {
		c.top[k] = v
	}
	return &c
}

// Every key with a star in README's table is in nodeWideKeys.
func TestNodeWideKeys_are_those_of_README(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var starred []string
	for line := range strings.Lines(string(text)) {
		if name, rest, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` *"); ok && strings.HasPrefix(rest, " |") {
			starred = append(starred, name)
		}
	}
	want := []string{"accounting.backend", "accounting.classes"}
	for key := range nodeWideKeys {
		if slices.Contains(want, key) {
			continue
		}
		if name, _, _ := strings.Cut(key, "."); !slices.Contains(want, name) {
			want = append(want, name)
		}
	}
	slices.Sort(starred)
	slices.Sort(want)
	if !slices.Equal(starred, want) {
		t.Errorf("README marks %v, tested are %v", starred, want)
	}
}

// obeys is what a pod's traffic shows of one node-wide key: value is "" while the default holds.
type obeys func(t *testing.T, s *stage, p *lab.Namespace, ip netip.Addr) (value string)

// nodeWideTraffic tells the value of a key from outside, by what happens to an existing pod's packets.
func nodeWideTraffic(t *testing.T, s *stage) map[string]obeys {
	t.Helper()
	srv, err := s.GW.EchoTCP(netip.AddrPortFrom(lab.SimpleInternet, 9000))
	if err != nil {
		t.Fatal(err)
	}
	seenAs := func(plain string) obeys {
		return func(t *testing.T, _ *stage, p *lab.Namespace, ip netip.Addr) string {
			t.Helper()
			if answer, _, err := p.Exchange(context.Background(), srv.Addr, "x", echoWait); err != nil || answer != "x" {
				t.Fatalf("exchange with the internet: %q %v", answer, err)
			}
			peers := srv.Peers()
			switch got := peers[len(peers)-1].Remote.Addr(); got {
			case lab.SimpleNode:
				return ""
			case ip:
				return plain
			default:
				return "seen as " + got.String()
			}
		}
	}
	return map[string]obeys{
		"masquerade":  seenAs("false"),
		"nativeCIDRs": seenAs(`["10.0.0.0/8","203.0.113.10/32"]`),
		"remotePods": func(t *testing.T, s *stage, p *lab.Namespace, _ netip.Addr) string {
			t.Helper()
			s.sh("ip neigh flush dev eth0 nud all")
			s.echo(p, netip.Addr{}, netip.MustParseAddr("10.20.0.99"), silence)
			if strings.Contains(s.sh("ip neigh show dev eth0 nud all"), "10.20.0.99 ") {
				return "off" // the node asked for the remote pod itself
			}
			return ""
		},
	}
}

// A changed value in the same network's configuration holds for pods that exist as soon as the next ADD is over, and a repair
// brings back that value, not the one that the pods were made with.
func TestNetnsNodeWide_a_changed_value_reaches_existing_pods(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"masquerade", "nativeCIDRs", "remotePods"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, lab.SimpleOptions{})
			other := nodeWideKeys[key]
			p, a := s.pathPod("p1")
			shows := nodeWideTraffic(t, s)[key]
			want := func(when, value string) {
				t.Helper()
				if got := shows(t, s, p, a.IP); got != value {
					t.Errorf("%s: the pod's traffic shows %s %q, want %q", when, key, got, value)
				}
				s.check("p1", p, a).ok()
			}
			want("default", "")
			s.pathKeyed(network, other.conf).pathPod("p2")
			want("changed", other.texts[1])
			s.sh("nft flush ruleset; for p in 499 500 510 599; do ip rule del pref $p 2>/dev/null || true; done")
			s.mustCtl("node", "repair") // its --conf has the default
			want("flushed and repaired", other.texts[1])
			s.pathPod("p3")
			want("changed back", "")
		})
	}
	t.Run("metadataAccess", func(t *testing.T) {
		t.Parallel()
		c := newPathCloud(t, lab.CloudOptions{Nodes: lab.DefaultNodes(5)[:1]})
		s := c.nodes[0].pathAs(t)
		p, _ := s.pathPod("p1")
		want := func(when string, services ...string) {
			t.Helper()
			if got := pathSecrets(p); !slices.Equal(got, services) {
				t.Errorf("%s: an existing pod reads %v, want %v", when, got, services)
			}
		}
		want("default")
		s.pathKeyed(network, access("imds")).pathPod("p2")
		want("IMDS allowed", "imds")
		s.pathKeyed(network, access("wireserver")).pathPod("p3")
		want("wireserver allowed instead", "wireserver:80", "wireserver:32526")
		s.pathPod("p4")
		want("denied again")
	})
}

// A second network that has another value is refused while pods of the first live, with the key and both values in the text,
// and may have it when there are none. Pods of a third network with the first one's values count like the first one's own.
func TestNetnsNodeWide_a_differing_second_network(t *testing.T) {
	t.Parallel()
	each(t, nodeWideKeys, func(t *testing.T, c struct {
		conf  map[string]any
		texts [2]string
	},
	) {
		_, key, _ := strings.Cut(t.Name(), "/")
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		p, a := s.pathPod("p1")
		second, third := s.pathKeyed("second", c.conf), s.pathKeyed("third", nil)
		q, r := s.Pod(t, "q"), s.Pod(t, "r")
		before, records := s.snapshot(), s.records()
		refused := func(who string, pods int) {
			t.Helper()
			text := fmt.Sprintf("%s: %s differs from the %s of network %q, which has pods here (%d)", key, c.texts[1], c.texts[0], who, pods)
			second.add("q", q).fails(7, text)
		}
		refused(network, 1)
		second.status().ok() // the node serves, only this network's pods don't
		s.unchanged(before)
		s.sameRecords(records)
		s.podEmpty(q, "after a refused ADD")
		s.reaches(p, a.IP)

		b := third.add("r", r).ok() // of the same values
		refused("third", 2)
		s.del("p1", p).ok()
		refused("third", 1)
		s.reaches(r, b.IP)
		third.del("r", r).ok()

		got := second.add("q", q).ok()
		s.reaches(q, got.IP)
		s.add("p1", p).fails(7, fmt.Sprintf("%s: %s differs from the %s of network %q", key, c.texts[0], c.texts[1], "second"))
		second.del("q", q).ok()
		s.reaches(p, s.add("p1", p).ok().IP)
	})
}

// A pod whose address another IPAM plugin gave has no lease, and lives by the node-wide values all the same.
func TestNetnsNodeWide_a_pod_of_another_IPAM(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(5))
	first := s.pathKeyed("first", map[string]any{"ipam": map[string]any{
		"type": "host-local", "dataDir": hostLocalDir, "subnet": "10.20.0.0/24", "rangeStart": "10.20.0.11", "rangeEnd": "10.20.0.11",
	}})
	first.path += ":" + filepath.Dir(peer(t, "host-local"))
	p := s.Pod(t, "p")
	a := first.add("p", p).ok()
	second, q := s.pathKeyed("second", map[string]any{"masquerade": false}), s.Pod(t, "q")
	second.add("q", q).fails(7, "masquerade", `"first"`, "(1)")
	s.reaches(p, a.IP)
	first.del("p", p).ok()
	second.add("q", q).ok()
}
