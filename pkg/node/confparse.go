package node

import (
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

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

// A prefix and 11 hex digits make a link's name, which has 15 bytes.
var prefixForm = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9]{0,3}$`)

// ParseMain reads the object that native-vmss is called with.
func ParseMain(data []byte, how Strictness) (Conf, error) {
	c := defaultConf()
	top, err := newObject("", data, how)
	if err != nil {
		return c, err
	}
	c.Name = top.name()
	top.integer("mtu", &c.MTU, func(v int) bool { return v == 0 || v >= minMTU && v <= maxMTU }, "0 or 576 to 65535")
	top.text("interfacePrefix", &c.InterfacePrefix, prefixForm.MatchString, "1 to 4 letters and digits, a letter first")
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
		sub.text("backend", &w.Accounting, func(s string) bool { return s == "none" }, `"none": this version counts nothing`)
		sub.finish()
	}
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
