package fakeazure

import (
	"encoding/xml"
	"net/http"
	"strings"
)

// WireserverSecret is in every answer of the wireserver that a pod must not see. Finding it in a pod proves that access is not
// denied.
const WireserverSecret = "fakeazure-wireserver-secret"

// wireserver is the part of 168.63.129.16 on tcp 80 and 32526.
type wireserver struct {
	cloud *Cloud
	vm    string
}

// Wireserver returns the handler for ports 80 and 32526, which tells VMs apart as IMDS does.
func (c *Cloud) Wireserver() http.Handler { return &wireserver{cloud: c} }

// WireserverFor returns the handler of one VM, whoever asks.
func (c *Cloud) WireserverFor(vmName string) http.Handler { return &wireserver{cloud: c, vm: vmName} }

// ServeHTTP implements http.Handler.
func (h *wireserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := h.cloud.asker(h.vm, r.RemoteAddr)
	entry := h.cloud.open(Request{
		Service: ServiceWireserver, VM: v.name(), Source: r.RemoteAddr,
		Line: r.Method + " " + r.URL.RequestURI(), UserAgent: r.UserAgent(),
	})
	rec := &recorder{ResponseWriter: w}
	h.serve(rec, r, v)
	h.cloud.closeStatus(entry, rec.status)
}

func (h *wireserver) serve(w http.ResponseWriter, r *http.Request, v *vm) {
	if v == nil {
		http.Error(w, "the source is not the primary address of a primary NIC", http.StatusForbidden)
		return
	}
	query := r.URL.Query()
	switch {
	case query.Get("comp") == "nmagent" && query.Get("type") == "getinterfaceinfov1":
		sendXML(w, h.cloud.nmagent(v))
	case r.URL.Path == "/vmSettings":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte(`{"hostGAPluginVersion":"1.0","extensionGoalStates":[{"settings":"` + WireserverSecret + `"}]}`))
	case query.Get("comp") == "goalstate":
		sendXML(w, goalState{Version: "2012-11-30", Incarnation: "1", Container: v.Name, Secret: WireserverSecret})
	default:
		sendXML(w, versions{Preferred: "2015-04-05", Supported: []string{"2015-04-05", "2012-11-30"}})
	}
}

// sendXML writes one document; an error of Encode is the client's going away.
func sendXML(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_ = xml.NewEncoder(w).Encode(v)
}

type goalState struct {
	XMLName     xml.Name `xml:"GoalState"`
	Version     string   `xml:"Version"`
	Incarnation string   `xml:"Incarnation"`
	Container   string   `xml:"Container>ContainerId"`
	Secret      string   `xml:"Container>RoleInstanceList>RoleInstance>Configuration>Certificates"`
}

type versions struct {
	XMLName   xml.Name `xml:"Versions"`
	Preferred string   `xml:"Preferred>Version"`
	Supported []string `xml:"Supported>Version"`
}

// The list of NICs that azure-ipam reads (azure-container-networking cns/wireserver/testdata/interfaces.xml at commit cbd7560c).
type (
	nmInterfaces struct {
		XMLName    xml.Name      `xml:"Interfaces"`
		Interfaces []nmInterface `xml:"Interface"`
	}
	nmInterface struct {
		MAC       string   `xml:"MacAddress,attr"`
		IsPrimary bool     `xml:"IsPrimary,attr"`
		Subnet    nmSubnet `xml:"IPSubnet"`
	}
	nmSubnet struct {
		Prefix    string      `xml:"Prefix,attr"`
		Addresses []nmAddress `xml:"IPAddress"`
	}
	nmAddress struct {
		Address   string `xml:"Address,attr"`
		IsPrimary bool   `xml:"IsPrimary,attr"`
	}
)

// nmagent lists the truth, without IMDS's lag.
func (c *Cloud) nmagent(v *vm) nmInterfaces {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out nmInterfaces
	for i, nic := range v.NICs {
		entry := nmInterface{MAC: strings.ToUpper(nic.MAC.IMDS()), IsPrimary: i == 0}
		if subnet, err := c.subnet(nic.Subnet); err == nil { // checked when the NIC was added
			entry.Subnet.Prefix = subnet.Prefix.String()
		}
		entry.Subnet.Addresses = []nmAddress{{Address: nic.Primary.String(), IsPrimary: true}}
		for _, addr := range nic.Secondaries {
			entry.Subnet.Addresses = append(entry.Subnet.Addresses, nmAddress{Address: addr.String()})
		}
		out.Interfaces = append(out.Interfaces, entry)
	}
	return out
}
