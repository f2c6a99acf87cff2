package netns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

// pathGet asks a platform service for something and returns what came, "" for nothing.
func pathGet(from *lab.Namespace, url string) string {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	req.Header.Set("Metadata", "true")
	resp, err := from.HTTPClient(silence).Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, b)
}

const (
	pathGoalState = "http://168.63.129.16%s/machine/?comp=goalstate"
	pathInstance  = "http://169.254.169.254/metadata/instance?api-version=2021-02-01"
)

// pathSecrets lists which of the platform's secrets a namespace can read.
func pathSecrets(from *lab.Namespace) (got []string) {
	for _, port := range []string{":80", ":32526"} {
		if strings.Contains(pathGet(from, fmt.Sprintf(pathGoalState, port)), fakeazure.WireserverSecret) {
			got = append(got, "wireserver"+port)
		}
	}
	if strings.Contains(pathGet(from, pathInstance), "macAddress") {
		got = append(got, "imds")
	}
	return got
}

// pathDNSOverTCP asks for a name by TCP.
func pathDNSOverTCP(from *lab.Namespace, name string) error {
	c, err := from.DialTCP(context.Background(), netip.Addr{}, netip.AddrPortFrom(lab.WireServer, 53), echoWait)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(echoWait)); err != nil {
		return err
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	wire, err := m.Pack()
	if err != nil {
		return err
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)); err != nil {
		return err
	}
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return err
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if err := m.Unpack(b); err != nil || len(m.Answers) == 0 {
		return fmt.Errorf("no answer: %w", err)
	}
	return nil
}

// Pods resolve names and see neither the node's secrets nor its identity; the node itself is as it was.
func TestNetnsPath_platform_addresses(t *testing.T) {
	t.Parallel()
	c := newPathCloud(t, lab.CloudOptions{Nodes: lab.DefaultNodes(5)[:1]})
	s := c.nodes[0].pathAs(t)
	p, _ := s.pathPod("p1")
	all := []string{"wireserver:80", "wireserver:32526", "imds"}

	t.Run("DNS_works_and_comes_from_the_nodes_primary", func(t *testing.T) {
		got, err := p.LookupA(context.Background(), netip.AddrPortFrom(lab.WireServer, 53), "svc.example.com.", echoWait)
		if err != nil || !slices.Equal(got, []netip.Addr{lab.CloudHub}) {
			t.Errorf("udp: %v %v", got, err)
		}
		if err := pathDNSOverTCP(p, "svc.example.com."); err != nil {
			t.Errorf("tcp: %v", err)
		}
		asked := 0
		for _, r := range c.Azure.Requests("node1") {
			if r.Service != fakeazure.ServiceDNS {
				continue
			}
			asked++
			if host, _, _ := net.SplitHostPort(r.Source); host != c.Nodes[0].NICs[0].Primary.String() {
				t.Errorf("DNS saw %s", r.Source)
			}
		}
		if asked != 2 {
			t.Errorf("DNS saw %d questions, want 2", asked)
		}
	})
	t.Run("wireserver_and_metadata_are_denied_by_default", func(t *testing.T) {
		if got := pathSecrets(p); len(got) > 0 {
			t.Errorf("the pod reads %v", got)
		}
		if got := pathSecrets(s.Node.Namespace); !slices.Equal(got, all) {
			t.Errorf("the node reads %v, want all", got)
		}
	})
	t.Run("a_service_that_leads_there_is_no_way_around", func(t *testing.T) {
		s.sh(`nft 'table ip svc { chain pre { type nat hook prerouting priority -100;
			ip daddr 10.96.0.10 tcp dport 80 dnat to 168.63.129.16:80; ip daddr 10.96.0.11 tcp dport 80 dnat to 168.63.129.16:32526;
			ip daddr 10.96.0.12 tcp dport 80 dnat to 169.254.169.254:80; ip daddr 10.96.0.13 tcp dport 53 dnat to 168.63.129.16:53; }; }'`)
		defer s.sh("nft delete table ip svc")
		for _, vip := range []string{"10.96.0.10", "10.96.0.11", "10.96.0.12"} {
			v, err := p.Connect(context.Background(), netip.AddrPortFrom(netip.MustParseAddr(vip), 80), silence)
			if err != nil || v == lab.Connected {
				t.Errorf("%s: %s %v", vip, v, err)
			}
		}
		v, err := p.Connect(context.Background(), netip.MustParseAddrPort("10.96.0.13:53"), echoWait)
		if err != nil || v != lab.Connected {
			t.Errorf("a Service that leads to DNS: %s %v, want connected (the others would prove nothing)", v, err)
		}
	})
	t.Run("no_way_by_IPv6", func(t *testing.T) { pathNoIPv6(t, s, p) })
	t.Run("allowed_when_the_configuration_says_so", func(t *testing.T) {
		s := s.pathAs(t)
		s.top = map[string]any{
			"cniVersion": "1.1.0", "name": network, "type": "native-vmss",
			"metadataAccess": map[string]any{"wireserver": "allow", "imds": "allow"},
		}
		s.pathPod("p2")
		if got := pathSecrets(p); !slices.Equal(got, all) {
			t.Errorf("an existing pod reads %v, want all", got)
		}
		delete(s.top, "metadataAccess")
		s.pathPod("p3")
		if got := pathSecrets(p); len(got) > 0 {
			t.Errorf("denied again, the pod reads %v", got)
		}
	})
	t.Run("DNS_works_with_masquerade_off", func(t *testing.T) {
		s := s.pathAs(t)
		s.top = map[string]any{"cniVersion": "1.1.0", "name": network, "type": "native-vmss", "masquerade": false}
		q, _ := s.pathPod("p4")
		got, err := q.LookupA(context.Background(), netip.AddrPortFrom(lab.WireServer, 53), "svc.example.com.", silence)
		if err != nil || !slices.Equal(got, []netip.Addr{lab.CloudHub}) {
			t.Errorf("%v %v", got, err)
		}
	})
	if n := len(c.Azure.Requests("")); n > 0 {
		t.Errorf("the platform saw %d requests from other sources than the node's primary", n)
	}
}

// pathNoIPv6 wants no IPv6 on the pod's link, and no way to the node by its link-local address, not even for a pod that turns
// IPv6 on again.
func pathNoIPv6(t *testing.T, s *stage, p *lab.Namespace) {
	t.Helper()
	if out := s.in(p, "ip -6 -o addr show dev eth0"); out != "" {
		t.Errorf("the pod has %s", out)
	}
	var l net.Listener
	err := s.Node.Do(func() (err error) { l, err = net.Listen("tcp6", "[::]:9999"); return err })
	if err != nil {
		t.Logf("no IPv6 in this kernel, nothing to deny: %v", err)
		return
	}
	defer l.Close()
	host := strings.Fields(s.sh("ip -o link show group " + pathGroup))[1]
	mac, err := s.Node.MAC(strings.Split(host, "@")[0])
	if err != nil {
		t.Fatal(err)
	}
	s.in(p, "sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.eth0.disable_ipv6=0 net.ipv6.conf.eth0.accept_dad=0;"+
		"ip -6 addr add fe80::99/64 dev eth0 nodad 2>/dev/null || true")
	target := fmt.Sprintf("[fe80::%02x%02x:%02xff:fe%02x:%02x%02x%%eth0]:9999", mac[0]^2, mac[1], mac[2], mac[3], mac[4], mac[5])
	err = p.Do(func() error {
		c, err := net.DialTimeout("tcp6", target, silence)
		if err == nil {
			c.Close()
		}
		return err
	})
	if err == nil {
		t.Errorf("the pod reached the node at %s", target)
	}
	if out := s.sh("ip -6 -o addr show dev " + strings.Split(host, "@")[0]); out != "" {
		t.Errorf("the host end has %s", out)
	}
}
