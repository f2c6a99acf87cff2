package accounting

import (
	"fmt"
	"net/netip"
	"strings"
)

// Chains of the mangle table. Names are at most 28 characters, XT_EXTENSION_MAXNAMELEN - 1 (uapi/linux/netfilter/x_tables.h).
const (
	chainPrefix = "NATIVE-VMSS-"
	chainConf   = chainPrefix + "CONF" // never passed; its rule names the configuration
	chainTX     = chainPrefix + "TX"   // source address -> chain of that address
	chainRX     = chainPrefix + "RX"   // destination address -> chain of that address
	chainMark   = chainPrefix + "MARK"
	chainNodeTX = chainPrefix + "NODE-TX"
	chainNodeRX = chainPrefix + "NODE-RX"
	prefixTX    = chainPrefix + "T-" // and eight hex digits
	prefixRX    = chainPrefix + "R-"
)

const (
	groupText  = "0x6e76"            // link group of the host ends of pods, 28278
	tag        = "iptables-exporter" // rules whose comment starts so are on that program's page
	maxComment = 255                 // bytes that the kernel keeps, XT_MAX_COMMENT_LEN - 1 (uapi/linux/netfilter/xt_comment.h)
	maxName    = 63                  // of a namespace
	maxClass   = 32
	// maxPod is what is left beside the longest of all else.
	maxPod = maxComment - len(tag) - len(" namespace=") - maxName - len(" pod=") - len(" direction=tx") -
		len(" class=") - maxClass - len(" net=100.100.100.100/32")
	hashDigits = 8
	noName     = "-"
)

// label is what a rule's comment says.
type label struct{ namespace, pod, direction, class, net string }

func (l label) String() string {
	return fmt.Sprintf("%s namespace=%s pod=%s direction=%s class=%s net=%s", tag, l.namespace, l.pod, l.direction, l.class, l.net)
}

// parseLabel reads a comment; one of another form is not ok.
func parseLabel(comment string) (l label, ok bool) {
	rest, ok := strings.CutPrefix(comment, tag+" ")
	if !ok {
		return label{}, false
	}
	for _, word := range strings.Fields(rest) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "namespace":
			l.namespace = value
		case "pod":
			l.pod = value
		case "direction":
			l.direction = value
		case "class":
			l.class = value
		case "net":
			l.net = value
		}
	}
	return l, (l.direction == RX || l.direction == TX) && l.class != ""
}

// clean makes a name that can stand in a restore text as it is and fits: what had to be changed ends in a hash of the whole, so
// that two names never become one.
//
//	web-0                  web-0
//	p…p-one (244 bytes)    p…p-1c3dab04
//	"a\nCOMMIT             a-commit-9f86d081 (each other character is a dash)
func clean(name string, most int) string {
	if name == "" {
		return noName
	}
	kept := strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, name)
	if kept == name && len(name) <= most && name != noName {
		return name
	}
	return kept[:min(len(kept), most-hashDigits-1)] + "-" + short(name, hashDigits)
}

func chainOf(direction string, a netip.Addr) string {
	if direction == TX {
		return prefixTX + hexAddr(a)
	}
	return prefixRX + hexAddr(a)
}

// addrOf is the address that a chain's name holds.
func addrOf(chain string) (direction string, a netip.Addr, ok bool) {
	digits, ok := strings.CutPrefix(chain, prefixTX)
	direction = TX
	if !ok {
		digits, ok = strings.CutPrefix(chain, prefixRX)
		direction = RX
	}
	var b [4]byte
	if !ok || len(digits) != 8 {
		return "", netip.Addr{}, false
	}
	if _, err := fmt.Sscanf(digits, "%02x%02x%02x%02x", &b[0], &b[1], &b[2], &b[3]); err != nil {
		return "", netip.Addr{}, false
	}
	a = netip.AddrFrom4(b)
	return direction, a, chainOf(direction, a) == chain
}

// dispatch is the rule that leads to an address's chain, and the chain that it stands in. It goes and doesn't jump: what returns
// from there skips the rules of all other addresses, and a second such rule counts nothing twice.
func dispatch(direction string, a netip.Addr) (chain, spec string) {
	if direction == TX {
		return chainTX, fmt.Sprintf("-s %s/32 -g %s", a, chainOf(TX, a))
	}
	return chainRX, fmt.Sprintf("-d %s/32 -g %s", a, chainOf(RX, a))
}

func markRule(conf Config, s Subject) (spec string, ok bool) {
	m := Mark(conf.MarkMask, s.Slot)
	return fmt.Sprintf("-s %s/32 -j MARK --set-xmark %#x/%#x", s.Addr, m, conf.MarkMask), m != 0
}

// hooks are our rules in the chains of others.
func hooks(conf Config) []hook {
	in := fmt.Sprintf("-m devgroup --src-group %s -j ", groupText)
	out := fmt.Sprintf("-m devgroup --dst-group %s -j ", groupText)
	all := []hook{{"FORWARD", in + chainTX}, {"INPUT", in + chainTX}, {"POSTROUTING", out + chainRX}}
	if conf.MarkMask != 0 {
		all = append(all, hook{"PREROUTING", in + chainMark})
	}
	for _, nic := range conf.NICs {
		all = append(
			all,
			hook{"INPUT", fmt.Sprintf("-i %s -m addrtype --dst-type LOCAL -j %s", nic, chainNodeRX)},
			hook{"POSTROUTING", fmt.Sprintf("-o %s -m addrtype --src-type LOCAL -j %s", nic, chainNodeTX)},
		)
	}
	return all
}

type hook struct{ chain, spec string }

// ruleTexts are one rule per prefix: the first that holds the peer counts and ends the chain.
func ruleTexts(conf Config, namespace, pod, direction string) []string {
	peer := "-d"
	if direction == RX {
		peer = "-s"
	}
	l := label{namespace: namespace, pod: pod, direction: direction}
	var specs []string
	for _, c := range conf.Classes {
		l.class = c.Name
		seen := map[netip.Prefix]bool{}
		for _, p := range c.Prefixes {
			if p = p.Masked(); seen[p] {
				continue
			}
			seen[p] = true
			l.net = p.String()
			match := fmt.Sprintf("%s %s ", peer, p)
			if p.Bits() == 0 {
				match = ""
			}
			specs = append(specs, fmt.Sprintf("%s-m comment --comment %q -j RETURN", match, l))
		}
	}
	l.class, l.net = Internet, "0.0.0.0/0"
	return append(specs, fmt.Sprintf("-m comment --comment %q -j RETURN", l))
}

func nodeRules(conf Config, direction string) []string {
	return ruleTexts(conf, noName, noName, direction)
}

// confRule names the configuration. Its number is another one after each change of the static part, so that of two changes that
// were planned for the same rule one fails.
func confRule(conf Config, number string) string {
	return fmt.Sprintf("-m comment --comment %q", confComment(conf)+number)
}

func confComment(conf Config) string { return "native-vmss conf=" + short(conf.Hash, 16) + " change=" }
