package netns

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// pluginSets are the builds of other plugins that lists are run with: name -> folder.
func pluginSets(t testing.TB) map[string]string {
	t.Helper()
	const debian = "/usr/lib/cni"
	if _, err := os.Stat(filepath.Join(debian, "portmap")); err != nil {
		t.Fatalf("the package containernetworking-plugins is missing: %v", err)
	}
	return map[string]string{"debian": debian, "module": filepath.Dir(peer(t, "portmap"))}
}

// speaks lists the versions of the specification that a plugin answers to VERSION.
func (s *stage) speaks(plugin string) []string {
	s.t.Helper()
	o := s.Node.RunPlugin(chainContext(s.t), plugin, lab.Call{Command: "VERSION", Stdin: []byte(`{"cniVersion":"0.4.0"}`)})
	if !o.OK() {
		s.t.Fatalf("%s VERSION: exit %d %v: %s%s", plugin, o.Exit, o.Err, o.Stdout, o.Stderr)
	}
	return pathJSON[struct{ SupportedVersions []string }](s.t, string(o.Stdout)).SupportedVersions
}

// shippedFor is a shipped list as a release of libcni is given it: the old one knows no version that a list begins with.
func shippedFor(t testing.TB, release, name string) string {
	t.Helper()
	text := shippedConf(t, name)
	if release == libcniOld {
		return atVersion(t, text, "0.4.0")
	}
	return text
}

// atVersion is a list that says another cniVersion.
func atVersion(t testing.TB, conf, version string) string {
	t.Helper()
	return edited(t, conf, `"cniVersion": "[^"]*"`, `"cniVersion": "`+version+`"`)
}

// claiming is a list that says 1.1.0 too, as its user may once all its plugins speak it.
func claiming(t testing.TB, conf string) string {
	t.Helper()
	return edited(t, conf, `"cniVersions": \[`, `"cniVersions": ["1.1.0", `)
}

func edited(t testing.TB, conf, old, fresh string) string {
	t.Helper()
	out := regexp.MustCompile(old).ReplaceAllString(conf, fresh)
	if out == conf {
		t.Fatalf("nothing like %s in %s", old, conf)
	}
	return out
}

// faultUnderPtp tells whether the chained plugins of a list do this wrong behind ptp too; then it is none of ours.
func (s *stage) faultUnderPtp(folder, conf string, f fault) bool {
	s.t.Helper()
	var list struct{ Plugins []map[string]any }
	if err := json.Unmarshal([]byte(conf), &list); err != nil {
		s.t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "0.4.0", "name": "control", "plugins": append([]map[string]any{
		{"type": "ptp", "ipam": map[string]any{
			"type": "static", "addresses": []any{map[string]any{"address": "192.0.2.9/24", "gateway": "192.0.2.1"}},
		}},
	}, list.Plugins[1:]...)})
	if err != nil {
		s.t.Fatal(err)
	}
	c := s.byCnitool(libcniNow, folder, string(text))
	p := s.sandbox("control")
	p.Capabilities = shippedPorts()
	if out, err := c.rt.Add(chainContext(s.t), p); err != nil {
		s.t.Fatalf("ADD under ptp: %v: %v", out, err)
	}
	wrong := map[string]error{faultyCheck: c.rt.Check(chainContext(s.t), p)} // ptp's own also fails behind sbr
	c.del(p)
	wrong[faultyDelAgain] = c.rt.Del(chainContext(s.t), p)
	err = wrong[f.verb]
	if err != nil && !strings.Contains(err.Error(), f.words) {
		s.t.Fatalf("%s under ptp: %v", f.verb, err)
	}
	return err != nil
}

// Every conflist that we ship, driven by libcni of three ages, with the plugins that Debian has and with their module's: ADD,
// CHECK directly after it, what the chained plugin is for, DEL twice, and the node is what it was.
func TestNetnsCnitool_shipped_conflists(t *testing.T) {
	t.Parallel()
	sets := pluginSets(t)
	faults := map[string]fault{ // of old releases: github.com/containernetworking/plugins/issues/819 and pull/892
		"portmap.conflist":           {faultyCheck, "could not check ipv6 dnat"},
		"portmap-bandwidth.conflist": {faultyCheck, "could not check ipv6 dnat"},
		"sbr.conflist":               {faultyDelAgain, "Link not found"},
	}
	for name, tt := range shippedCases(t) {
		with := sets
		if len(parseConflist(t, shippedConf(t, name)).Plugins) == 1 {
			with = map[string]string{"alone": ""}
		}
		for _, release := range []string{libcniOld, libcniMiddle, libcniNow} {
			for set, folder := range with {
				t.Run(strings.Join([]string{strings.TrimSuffix(name, ".conflist"), release, set}, "/"), func(t *testing.T) {
					t.Parallel()
					tt.run(newStage(t, lab.SimpleOptions{}), name, func(s *stage, name string) *chain {
						c := s.byCnitool(release, folder, shippedFor(t, release, name))
						if f, has := faults[name]; has && set == "debian" && s.faultUnderPtp(folder, c.conflist, f) {
							c.fault = f
						}
						return c
					})
				})
			}
		}
	}
}

// What the README advises where a list's plugin fails CHECK.
func TestNetnsCnitool_check_disabled(t *testing.T) {
	t.Parallel()
	const file = "portmap.conflist"
	folder := pluginSets(t)["debian"]
	shippedCases(t)[file].run(newStage(t, lab.SimpleOptions{}), file, func(s *stage, name string) *chain {
		return s.byCnitool(libcniNow, folder, edited(t, shippedConf(t, name), `"cniVersions"`, `"disableCheck": true, "cniVersions"`))
	})
}

// No list says a version that a plugin of it doesn't speak: runtimes pick by the list alone, and then neither ADD nor DEL works.
func TestNetnsCnitool_versions_of_the_conflists(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	for name := range shippedCases(t) {
		list := parseConflist(t, shippedConf(t, name))
		said := append(slices.Clone(list.Versions), list.Version)
		for i, p := range list.Plugins {
			builds := pluginSets(t)
			if i == 0 {
				builds = map[string]string{"ours": s.path}
			}
			for set, folder := range builds {
				speaks := s.speaks(filepath.Join(folder, p.Type))
				for _, v := range said {
					if !slices.Contains(speaks, v) {
						t.Errorf("%s says %s, which %s of %s doesn't speak (%v)", name, v, p.Type, set, speaks)
					}
				}
			}
		}
	}
}

// A version that the caller or a plugin of the list doesn't speak: ADD says so, though our part of it ran. DEL leaves nothing:
// the wrong list's own where it reaches us, else that of the list put right.
func TestNetnsCnitool_version_that_is_not_spoken(t *testing.T) {
	t.Parallel()
	const ourFile, portsFile = "10-native-vmss.conflist", "portmap.conflist"
	asShipped := func(_ testing.TB, conf string) string { return conf }
	newestAlone := func(t testing.TB, conf string) string { return atVersion(t, conf, "1.1.0") }
	type unspoken struct {
		release, file string
		wrong         func(t testing.TB, conf string) string
		words         string
		stuck         bool // DEL fails as ADD did
	}
	each(t, map[string]unspoken{
		"old libcni, as we ship it":          {libcniOld, ourFile, asShipped, `unsupported CNI result version "1.0.0"`, false},
		"old libcni, portmap as we ship it":  {libcniOld, portsFile, asShipped, `unsupported CNI result version "1.0.0"`, false},
		"libcni before 1.1.0, newest alone":  {libcniMiddle, ourFile, newestAlone, `unsupported CNI result version "1.1.0"`, false},
		"portmap of Debian, a list of 1.1.0": {libcniNow, portsFile, claiming, `incompatible CNI versions; config is "1.1.0"`, true},
	}, func(t *testing.T, tt unspoken) {
		s := newStage(t, poolOf(3))
		folder := pluginSets(t)["debian"]
		good := s.byCnitool(tt.release, folder, shippedFor(t, tt.release, tt.file))
		wrong := s.byCnitool(tt.release, folder, tt.wrong(t, shippedConf(t, tt.file)))
		settled := s.sandbox("settle")
		settled.Capabilities = shippedPorts() // chains of iptables stay, without CHECK: Debian's portmap fails it
		if _, err := good.rt.Add(chainContext(t), settled); err != nil {
			t.Fatal(err)
		}
		good.del(settled)
		before := s.snapshot()
		fails := func(verb string, err error, words string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v, want %q", verb, err, words)
			}
		}
		attach := func(id string) (*lab.Namespace, lab.Pod) {
			t.Helper()
			space := s.Pod(t, id)
			p := lab.Pod{ID: id, Netns: space.Path, Namespace: "team-a", Name: id, Capabilities: shippedPorts()}
			_, err := wrong.rt.Add(chainContext(t), p)
			fails("ADD", err, tt.words)
			if held := s.held(); len(held) != 1 {
				t.Errorf("leased %v: the version is the caller's or the next plugin's business, not ours", held)
			}
			return space, p
		}
		space, p := attach("p1")
		if !tt.stuck {
			wrong.del(p)
			s.noLeak(before)
			s.podEmpty(space, "after DEL")
			return
		}
		fails("DEL", wrong.rt.Del(chainContext(t), p), tt.words)
		good.del(p)
		s.noLeak(before)
		// Nobody puts the list right, and the pod goes: CRI-O's GC at its start reaches us before it fails.
		space, p = attach("p2")
		fails("DEL", wrong.rt.Del(chainContext(t), p), tt.words)
		fails("GC", wrong.rt.GC(chainContext(t)), "failed to GC plugin portmap")
		if held := s.held(); len(held) != 1 {
			t.Errorf("leased %v, the pod lives", held)
		}
		if err := space.Close(); err != nil {
			t.Fatal(err)
		}
		if !pathEventually(patience, func() bool { return len(s.podLinks()) == 0 }) {
			t.Fatal("the pod's link outlived its namespace")
		}
		fails("GC", wrong.rt.GC(chainContext(t)), "failed to GC plugin portmap")
		s.noLeak(before)
	})
}

// Another libcni takes over while pods live, as when a node's runtime is upgraded: CHECK and DEL of what the older one keeps.
func TestNetnsCnitool_upgraded_runtime(t *testing.T) {
	t.Parallel()
	each(t, map[string][2]string{
		libcniOld + " to " + libcniMiddle: {libcniOld, libcniMiddle},
		libcniOld + " to " + libcniNow:    {libcniOld, libcniNow},
		libcniMiddle + " to " + libcniNow: {libcniMiddle, libcniNow},
	}, func(t *testing.T, releases [2]string) {
		const file = "10-native-vmss.conflist"
		s := newStage(t, poolOf(3))
		older := s.byCnitool(releases[0], "", shippedFor(t, releases[0], file))
		newer := s.byCnitool(releases[1], "", shippedFor(t, releases[1], file))
		older.settle(nil)
		before := s.snapshot()
		space := s.Pod(t, "p1")
		p := lab.Pod{ID: "p1", Netns: space.Path, Namespace: "team-a", Name: "p1"}
		ip := addrOf(t, older.add(p))
		newer.check(p)
		s.reaches(space, ip)
		newer.del(p)
		newer.del(p)
		s.noLeak(before)
		s.podEmpty(space, "after DEL")
	})
}

// STATUS and GC reach every plugin of a list of 1.1.0 whose plugins all speak it; a list that stops at 1.0.0 has neither.
func TestNetnsCnitool_status_and_gc(t *testing.T) {
	t.Parallel()
	module := filepath.Dir(peer(t, "portmap"))
	for name, tt := range shippedCases(t) {
		if tt.second {
			continue // a pod's first interface is enough for these verbs
		}
		t.Run(strings.TrimSuffix(name, ".conflist"), func(t *testing.T) {
			t.Parallel()
			s := newStage(t, poolOf(4))
			conf := shippedConf(t, name)
			if !slices.Contains(parseConflist(t, conf).Versions, "1.1.0") {
				conf = claiming(t, conf)
			}
			c := s.byCnitool(libcniNow, module, conf)
			c.statusOf()
			c.settle(tt.capabilities)
			c.gcOf(tt.capabilities)
		})
	}
}

// statusOf: a node that can serve pods is ready, before its first pod too; a list that we can't use is not, and says why.
func (c *chain) statusOf() {
	c.t.Helper()
	if err := c.rt.Status(chainContext(c.t)); err != nil {
		c.t.Errorf("STATUS of a new node: %v", err)
	}
	bad := c.byCnitool(libcniNow, "", edited(c.t, c.conflist, `"type": "native-vmss"`, `"type": "native-vmss", "nonsense": 1`))
	if err := bad.rt.Status(chainContext(c.t)); err == nil || !strings.Contains(err.Error(), "nonsense") {
		c.t.Errorf("STATUS with a key that we don't know: %v", err)
	}
}

// gcOf: the program DELs what it remembers and then sends GC without a list. So its own pods go, another runtime's pod stays
// while it lives, and what is left of a dead one goes.
func (c *chain) gcOf(capabilities map[string]any) {
	c.t.Helper()
	before := c.snapshot()
	other := c.shipped("10-native-vmss.conflist") // some plugins leave their part of a pod that nobody DELs
	live := c.Pod(c.t, "live")
	livePod := lab.Pod{ID: "live", Netns: live.Path}
	ip := addrOf(c.t, other.add(livePod))
	lives := c.snapshot()
	dead := c.Pod(c.t, "dead")
	other.add(lab.Pod{ID: "dead", Netns: dead.Path})
	mine := c.Pod(c.t, "mine")
	c.add(lab.Pod{ID: "mine", Netns: mine.Path, Capabilities: capabilities})
	if err := dead.Close(); err != nil {
		c.t.Fatal(err)
	}
	if !pathEventually(patience, func() bool { return len(c.podLinks()) == 2 }) {
		c.t.Fatalf("links %v: that of the dead pod outlived its namespace", c.podLinks())
	}
	if err := c.rt.GC(chainContext(c.t)); err != nil {
		c.t.Errorf("GC: %v", err)
	}
	if held := c.held(); !slices.Equal(held, []netip.Addr{ip}) {
		c.t.Errorf("leased %v, want %s of the live pod alone", held, ip)
	}
	c.unchanged(lives)
	c.podEmpty(mine, "after GC")
	c.reaches(live, ip)
	other.del(livePod)
	c.noLeak(before)
}
