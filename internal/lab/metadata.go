package lab

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// MetadataStub answers instead of the metadata service: with a document, or with whatever handler a test scripts.
type MetadataStub struct {
	mu       sync.Mutex
	handler  http.Handler
	requests []MetadataRequest
}

// MetadataRequest is one request that the stub got.
type MetadataRequest struct {
	Time   time.Time
	Path   string // with the query
	Header http.Header
	Remote string
}

// MetadataNIC is one network interface of a metadata document.
type MetadataNIC struct {
	MAC    string
	Addrs  []netip.Addr // the primary first, as IMDS does in practice
	Subnet netip.Prefix
}

// ServeHTTP records the request and answers by the present handler.
func (m *MetadataStub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.requests = append(m.requests, MetadataRequest{Time: time.Now(), Path: r.URL.RequestURI(), Header: r.Header, Remote: r.RemoteAddr})
	h := m.handler
	m.mu.Unlock()
	if h == nil {
		http.Error(w, "no metadata", http.StatusInternalServerError)
		return
	}
	h.ServeHTTP(w, r)
}

// Handle replaces the handler.
func (m *MetadataStub) Handle(h http.Handler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.handler = h
}

// HandleFunc replaces the handler.
func (m *MetadataStub) HandleFunc(f func(http.ResponseWriter, *http.Request)) {
	m.Handle(http.HandlerFunc(f))
}

// Serving replaces the handler by DocumentHandler(network).
func (m *MetadataStub) Serving(network any) { m.Handle(DocumentHandler(network)) }

// Requests returns what was asked since the last Forget.
func (m *MetadataStub) Requests() []MetadataRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// Forget drops the recorded requests.
func (m *MetadataStub) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests = nil
}

// DocumentHandler serves a network document under …/network and wrapped as "network" for the whole instance. As the real
// service does, it wants the Metadata header and no X-Forwarded-For. A json.RawMessage or a string of JSON is served as it is.
func DocumentHandler(network any) http.Handler {
	if s, ok := network.(string); ok {
		network = json.RawMessage(s)
	}
	whole := map[string]any{"compute": map[string]any{"name": "lab_0", "azEnvironment": "AzurePublicCloud"}, "network": network}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.EqualFold(r.Header.Get("Metadata"), "true") || r.Header.Get("X-Forwarded-For") != "" {
			http.Error(w, `{"error":"Bad request. Required metadata header not specified"}`, http.StatusBadRequest)
			return
		}
		document := any(whole)
		switch strings.TrimSuffix(r.URL.Path, "/") {
		case "/metadata/instance":
		case "/metadata/instance/network":
			document = network
		default:
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_ = json.NewEncoder(w).Encode(document)
	})
}

// NetworkDocument writes the network part of an instance document: all values strings, the MAC as given.
func NetworkDocument(nics ...MetadataNIC) map[string]any {
	list := []any{}
	for _, nic := range nics {
		addrs := []any{}
		for _, a := range nic.Addrs {
			addrs = append(addrs, map[string]any{"privateIpAddress": a.String(), "publicIpAddress": ""})
		}
		subnet := map[string]any{"address": nic.Subnet.Masked().Addr().String(), "prefix": strconv.Itoa(nic.Subnet.Bits())}
		list = append(list, map[string]any{
			"ipv4":       map[string]any{"ipAddress": addrs, "subnet": []any{subnet}},
			"ipv6":       map[string]any{"ipAddress": []any{}},
			"macAddress": nic.MAC,
		})
	}
	return map[string]any{"interface": list}
}
