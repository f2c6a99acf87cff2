package node

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"time"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// Deadlines of one invocation. Runtimes give up after 60 to 240 s; ours end well before, with an error that says why.
const (
	AddTimeout    = 30 * time.Second
	DelTimeout    = 20 * time.Second
	GCTimeout     = 30 * time.Second
	StatusTimeout = time.Second
	undoTimeout   = 10 * time.Second
)

// Defaults of the configuration.
const (
	DefaultStateDir    = "/run/native-vmss"
	DefaultMetadataURL = "http://169.254.169.254"
	defaultPrefix      = "veth"
	defaultRefresh     = 60 * time.Second
	defaultCoolDown    = 30 * time.Second
	defaultLockTimeout = 10 * time.Second
	defaultMarkMask    = 0x0fff0000
	// IPAMType is the type of our own IPAM plugin: its addresses come from the allocator in this process.
	IPAMType = "ipam-vmss"
)

// Conf is one plugin's configuration with every default filled in.
type Conf struct {
	Name            string // network name
	MTU             int    // 0: the NIC's
	InterfacePrefix string // 1-4 characters
	Wide            Wide
	IPAM            IPAM
	Log             Log
}

// Wide holds the keys that belong to the node, not to one network: all pods share their effect.
type Wide struct {
	NativeCIDRs []netip.Prefix    `json:"nativeCIDRs"` // sorted
	Masquerade  bool              `json:"masquerade"`
	RemotePods  routes.RemotePods `json:"remotePods"`
	MarkMask    uint32            `json:"markMask"`
	Wireserver  bool              `json:"wireserver"` // pods may reach tcp 80 and 32526 of 168.63.129.16
	IMDS        bool              `json:"imds"`       // pods may reach 169.254.169.254
	// Accounting is the backend that counts, Classes are the configuration's own ones, in order.
	Accounting string             `json:"accounting"`
	Classes    []accounting.Class `json:"classes,omitempty"`
}

// IPAM holds the keys of the ipam object that ipam-vmss reads.
type IPAM struct {
	Type        string
	StateDir    string
	MetadataURL string
	Refresh     time.Duration
	CoolDown    time.Duration
	LockTimeout time.Duration
}

// Log says how much is logged and where; an empty File is standard error.
type Log struct {
	Level slog.Level
	File  string
}

// wideKey is a node-wide key as a configuration spells it, with its value.
type wideKey struct{ name, value string }

// keys lists every node-wide key.
func (w Wide) keys() []wideKey {
	access := func(allowed bool) string {
		if allowed {
			return "allow"
		}
		return "deny"
	}
	type class struct {
		Name  string         `json:"name"`
		CIDRs []netip.Prefix `json:"cidrs"`
	}
	classes := []class{}
	for _, c := range w.Classes {
		classes = append(classes, class{c.Name, c.Prefixes})
	}
	return []wideKey{
		{"nativeCIDRs", inJSON(w.NativeCIDRs)},
		{"masquerade", strconv.FormatBool(w.Masquerade)},
		{"remotePods", string(w.RemotePods)},
		{"markMask", fmt.Sprintf("%#08x", w.MarkMask)},
		{"metadataAccess.wireserver", access(w.Wireserver)},
		{"metadataAccess.imds", access(w.IMDS)},
		{"accounting.backend", w.Accounting},
		{"accounting.classes", inJSON(classes)},
	}
}

func inJSON(v any) string {
	b, _ := json.Marshal(v) // plain data: can't fail
	return string(b)
}

// differs returns the first key in which two node-wide settings differ, once with each one's value.
func (w Wide) differs(o Wide) (mine, others wideKey, differ bool) {
	theirs := o.keys()
	for i, k := range w.keys() {
		if k != theirs[i] {
			return k, theirs[i], true
		}
	}
	return wideKey{}, wideKey{}, false
}

func defaultConf() Conf {
	return Conf{
		InterfacePrefix: defaultPrefix,
		Wide: Wide{
			NativeCIDRs: []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
				netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
			},
			Masquerade: true,
			RemotePods: routes.RemotePodsPods,
			MarkMask:   defaultMarkMask,
			Accounting: accounting.NFTables,
		},
		IPAM: IPAM{
			StateDir: DefaultStateDir, MetadataURL: DefaultMetadataURL,
			Refresh: defaultRefresh, CoolDown: defaultCoolDown, LockTimeout: defaultLockTimeout,
		},
		Log: Log{Level: slog.LevelWarn},
	}
}
