package lab_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const instanceURL = "http://169.254.169.254:80/metadata/instance?api-version=2021-02-01"

// get asks the stub from the node.
func get(t *testing.T, s *lab.Simple, url, header string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Metadata", header)
	res, err := s.Node.HTTPClient(time.Second).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, body
}

func TestNetnsSimple_serves_metadata_and_routes_both_NICs(t *testing.T) {
	pool2 := lab.AddrRange(netip.MustParseAddr("10.20.1.50"), 2)
	s := lab.NewSimple(t, lab.SimpleOptions{Pool2: pool2})

	if code, _ := get(t, s, instanceURL, ""); code != http.StatusBadRequest {
		t.Errorf("without the header: %d", code)
	}
	code, body := get(t, s, instanceURL, "true")
	var doc struct {
		Network struct {
			Interface []struct {
				MACAddress string `json:"macAddress"`
				IPv4       struct {
					IPAddress []struct{ PrivateIPAddress string }
					Subnet    []struct{ Address, Prefix string }
				}
			}
		}
	}
	if err := json.Unmarshal(body, &doc); err != nil || code != http.StatusOK || len(doc.Network.Interface) != 2 {
		t.Fatalf("%d, %v: %s", code, err, body)
	}
	first := doc.Network.Interface[0]
	if first.MACAddress != "02005E100004" || len(first.IPv4.IPAddress) != 6 || first.IPv4.IPAddress[1].PrivateIPAddress != "10.20.0.10" ||
		first.IPv4.Subnet[0].Prefix != "24" {
		t.Errorf("document: %s", body)
	}
	s.MD.HandleFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
	if code, _ := get(t, s, instanceURL, "true"); code != http.StatusGone {
		t.Errorf("scripted: %d", code)
	}
	if n := len(s.MD.Requests()); n != 3 {
		t.Errorf("%d requests recorded", n)
	}
	// The gateway sends addresses of the pools to the NIC that owns them: the node, which has no pod, answers that it has none
	// or sends them back, but is asked.
	f, err := s.Node.OpenFrames("eth1")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	go s.GW.SendUDP(netip.AddrPortFrom(pool2[0], 9), []byte("x"), 100*time.Millisecond)
	arrived := f.Await(2*time.Second, func(b []byte) bool {
		_, dst, _, ok := lab.UDPIn(b)
		return ok && dst.Addr() == pool2[0]
	})
	if arrived == nil {
		t.Error("address of the second NIC not delivered to it")
	}
}
