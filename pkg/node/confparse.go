package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/metadata"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// Strictness says what a verb makes of a configuration that it can't fully use.
type Strictness int

const (
	// Strict is ADD's and STATUS's: a wrong value or an unknown key is an error.
	Strict Strictness = iota
	// Lenient is DEL's, CHECK's and GC's: a wrong name, ipam.type or stateDir is an error, a wrong value elsewhere is its default.
	Lenient
)

// Keys that callers, libcni and the specification put beside ours.
var foreignKeys = []string{
	"cniVersion", "cniVersions", "name", "type", "ipam", "dns", "args", "ipMasq", "capabilities", "runtimeConfig",
	"prevResult", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "deviceID",
}

const (
	maxMTU = 65535
	minMTU = 576 // RFC 791: what every IPv4 host must take
	// Each refresh is a request, and a VM may make 5 per second in all.
	minRefresh = time.Second
)

// ParseMain reads the object that native-vmss is called with.
func ParseMain(data []byte, how Strictness) (Conf, error) {
	c := defaultConf()
	top, err := newObject("", data, how)
	if err != nil {
		return c, err
	}
	c.Name = top.name()
	top.integer("mtu", &c.MTU, func(v int) bool { return v == 0 || v >= minMTU && v <= maxMTU }, "0 or 576 to 65535")
	top.text("interfacePrefix", &c.InterfacePrefix, isLinkPrefix, "1 to 4 letters and digits, a letter first")
	top.nodeWide(&c.Wide)
	top.log(&c.Log)
	if sub := top.ipam(&c.IPAM); sub != nil && c.IPAM.Type == IPAMType { // another plugin's object is that plugin's to judge
		sub.allocation(&c.IPAM)
	}
	return c, top.done(foreignKeys...)
}

// ParseIPAM reads the same object as ipam-vmss sees it under any main plugin: only what is inside "ipam" is judged.
func ParseIPAM(data []byte, how Strictness) (Conf, error) {
	c := defaultConf()
	top, err := newObject("", data, how)
	if err != nil {
		return c, err
	}
	c.Name = top.name()
	if sub := top.ipam(&c.IPAM); sub != nil { // whatever name this binary goes by
		sub.allocation(&c.IPAM)
	}
	return c, top.errs.first()
}

func (o *object) name() string {
	var name string
	o.must("name", &name)
	return name
}

// ipam reads the type of the ipam object and returns the object, nil without one. A wrong or missing one is an error for
// every verb, since without its type nobody can know whose addresses these are.
func (o *object) ipam(c *IPAM) *object {
	if o.fields["ipam"] == nil && o.fields["plugins"] != nil {
		o.fatal("plugins", "a whole conflist was given where one plugin's object is due")
		return nil
	}
	sub := o.sub("ipam", true)
	if sub == nil {
		return nil
	}
	sub.must("type", &c.Type)
	if strings.ContainsRune(c.Type, '/') || c.Type == "." || c.Type == ".." {
		sub.fatal("type", "%q is a path, not the name of a plugin", c.Type)
	}
	return sub
}

// allocation reads the keys of the ipam object that are ipam-vmss's.
func (o *object) allocation(c *IPAM) {
	o.essential("stateDir", &c.StateDir, filepath.IsAbs, "an absolute path")
	o.text("metadataURL", &c.MetadataURL, validMetadataURL, "http://host or file:///path")
	o.duration("refresh", &c.Refresh, minRefresh)
	o.duration("cooldown", &c.CoolDown, 0)
	o.duration("lockTimeout", &c.LockTimeout, time.Millisecond)
	o.finish("type", "routes", "dns")
}

// validMetadataURL asks the client: what it would refuse later must not get past here, or DEL would fail for it.
func validMetadataURL(s string) bool {
	_, err := metadata.New(s, nil)
	return err == nil
}

func (o *object) nodeWide(w *Wide) {
	o.prefixes("nativeCIDRs", &w.NativeCIDRs)
	o.value("masquerade", &w.Masquerade, "true or false")
	mode := string(w.RemotePods)
	o.text("remotePods", &mode, func(s string) bool {
		return slices.Contains([]routes.RemotePods{routes.RemotePodsPods, routes.RemotePodsNode, routes.RemotePodsOff}, routes.RemotePods(s))
	}, `"pods", "node" or "off"`)
	w.RemotePods = routes.RemotePods(mode)
	o.mask("markMask", &w.MarkMask)
	if sub := o.sub("metadataAccess", false); sub != nil {
		sub.access("wireserver", &w.Wireserver)
		sub.access("imds", &w.IMDS)
		sub.finish()
	}
	if sub := o.sub("accounting", false); sub != nil {
		sub.text("backend", &w.Accounting, func(s string) bool {
			return slices.Contains([]string{accounting.NFTables, accounting.IPTables, accounting.None}, s)
		}, `"nftables", "iptables" or "none"`)
		sub.classes("classes", &w.Classes)
		sub.finish()
	}
}

const maxClasses = 16 // a packet asks each of them in turn

// Names are looked at by hand: to compile two expressions costs a process that starts a quarter of a millisecond.
const (
	lowerDigits = "abcdefghijklmnopqrstuvwxyz0123456789"
	upperCase   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	letters     = "abcdefghijklmnopqrstuvwxyz" + upperCase
)

// isLinkPrefix: a prefix and 11 hex digits make a link's name, which has 15 bytes.
func isLinkPrefix(s string) bool {
	return s != "" && len(s) <= 4 && strings.Trim(s, lowerDigits+upperCase) == "" && strings.Contains(letters, s[:1])
}

// takenNames are the classes that are always there, and what 'vmssctl top' sorts by beside classes.
var takenNames = []string{accounting.Cluster, accounting.Internet, "total", "rx", "tx", "name"}

// isClassName keeps a class's name harmless in rules, in comments and on the page.
func isClassName(s string) bool {
	return s != "" && len(s) <= 24 && strings.Trim(s, lowerDigits+"-") == "" && s[0] != '-' && s[len(s)-1] != '-'
}

// classes reads a list of {name, cidrs}; the first that holds a peer counts.
func (o *object) classes(key string, dst *[]accounting.Class) {
	raw, ok := o.take(key)
	if !ok {
		return
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || len(list) > maxClasses {
		o.wrong(key, fmt.Sprintf("a list of at most %d classes {name, cidrs}", maxClasses))
		return
	}
	var out []accounting.Class
	for i, item := range list {
		one := &object{path: fmt.Sprintf("%s%s[%d].", o.path, key, i), how: o.how, errs: o.errs}
		if json.Unmarshal(item, &one.fields) != nil || one.fields == nil {
			o.wrong(key, fmt.Sprintf("a list of classes {name, cidrs}: [%d] is no object", i))
			return
		}
		var c accounting.Class
		one.text("name", &c.Name, func(s string) bool {
			used := slices.ContainsFunc(out, func(c accounting.Class) bool { return c.Name == s })
			return isClassName(s) && !used && !slices.Contains(takenNames, s)
		}, "1 to 24 lower-case letters, digits and hyphens, another than those before it and than "+strings.Join(takenNames, ", "))
		one.prefixes("cidrs", &c.Prefixes)
		one.finish()
		if c.Name == "" || len(c.Prefixes) == 0 {
			o.wrong(key, fmt.Sprintf("a list of classes {name, cidrs}: [%d] has not both", i))
			return
		}
		out = append(out, c)
	}
	*dst = out
}

func (o *object) log(l *Log) {
	sub := o.sub("log", false)
	if sub == nil {
		return
	}
	level := "warn"
	sub.text("level", &level, func(s string) bool { return new(slog.Level).UnmarshalText([]byte(s)) == nil },
		`"debug", "info", "warn" or "error"`)
	_ = l.Level.UnmarshalText([]byte(level))
	sub.value("file", &l.File, "a path")
	sub.finish()
}

// IsConfig reports whether the error is about the configuration.
func IsConfig(err error) bool { return errors.Is(err, ErrConfig) || errors.Is(err, ErrUnknownKey) }
