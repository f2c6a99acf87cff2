package fakeazure

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	instancePath = "/metadata/instance"
	versionsPath = "/metadata/versions"
)

// apiVersions are those that the reference lists (IMDSDOC).
var apiVersions = []string{
	"2017-03-01", "2017-04-02", "2017-08-01", "2017-10-01", "2017-12-01", "2018-02-01", "2018-04-02", "2018-10-01",
	"2019-02-01", "2019-03-11", "2019-04-30", "2019-06-01", "2019-06-04", "2019-08-01", "2019-08-15", "2019-11-01", "2020-06-01",
	"2020-07-15", "2020-09-01", "2020-10-01", "2020-12-01", "2021-01-01", "2021-02-01", "2021-03-01", "2021-05-01", "2021-10-01",
	"2021-11-01", "2021-11-15", "2021-12-13", "2023-07-01", "2023-11-15", "2024-03-15", "2024-07-17", "2025-04-07",
}

// imds is the metadata service; vm is the one that always asks, "" to tell by the source.
type imds struct {
	cloud *Cloud
	vm    string
}

// IMDS returns the metadata service of all VMs. It tells them apart by the source: the primary address of the primary NIC;
// everybody else is answered 403 (Azure doesn't answer; a fabric should drop the packets).
func (c *Cloud) IMDS() http.Handler { return &imds{cloud: c} }

// IMDSFor returns the metadata service of one VM, whoever asks.
func (c *Cloud) IMDSFor(vmName string) http.Handler { return &imds{cloud: c, vm: vmName} }

// asker returns the VM that a request comes from, nil for a stranger.
func (c *Cloud) asker(single, remote string) *vm {
	c.mu.Lock()
	defer c.mu.Unlock()
	if single != "" {
		v, _ := c.find(single)
		return v
	}
	source, err := netip.ParseAddrPort(remote)
	if err != nil {
		return nil
	}
	return c.bySource(source.Addr())
}

// name is "" for a stranger.
func (v *vm) name() string {
	if v == nil {
		return ""
	}
	return v.Name
}

// ServeHTTP implements http.Handler.
func (h *imds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := h.cloud.asker(h.vm, r.RemoteAddr)
	entry := h.cloud.open(Request{
		Service: ServiceIMDS, VM: v.name(), Source: r.RemoteAddr,
		Line: r.Method + " " + r.URL.RequestURI(), UserAgent: r.UserAgent(),
	})
	rec := &recorder{ResponseWriter: w}
	err := h.serve(rec, r, v)
	if errors.Is(err, errCut) {
		h.cloud.closeStatus(entry, 0)
		panic(http.ErrAbortHandler) // net/http's way to close the connection at once
	}
	h.cloud.closeStatus(entry, rec.status)
}

// recorder keeps the status; 0 until there is one.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// serve checks in the order of the real service, as far as it is known.
func (h *imds) serve(w http.ResponseWriter, r *http.Request, v *vm) error {
	if status, text := refuse(r, v); status != 0 {
		return fail(w, status, text)
	}
	if r.URL.Path == versionsPath {
		return sendJSON(w, Fault{}, r, map[string]any{"apiVersions": apiVersions})
	}
	path, ok := strings.CutPrefix(r.URL.Path, instancePath)
	if !ok || (path != "" && path[0] != '/') {
		return fail(w, http.StatusNotFound, "Not found")
	}
	fault := h.cloud.next(v)
	if err := fault.begin(r.Context(), w.Header()); err != nil {
		return err
	}
	if fault.Status != 0 {
		return fault.send(r.Context(), w, fault.Status, []byte(fault.Body))
	}
	if !h.cloud.admit(v) {
		return fail(w, http.StatusTooManyRequests, "Too many requests")
	}
	return h.instance(w, r, v, path, fault)
}

// refuse returns the status and text for what IMDS never answers, or 0.
func refuse(r *http.Request, v *vm) (int, string) {
	switch {
	case v == nil:
		return http.StatusForbidden, "Forbidden. The source is not the primary address of a primary NIC."
	case r.Method != http.MethodGet:
		return http.StatusMethodNotAllowed, "Method not allowed"
	case len(r.Header.Values("X-Forwarded-For")) > 0:
		return http.StatusBadRequest, "Bad request. X-Forwarded-For is not allowed."
	case !strings.EqualFold(r.Header.Get("Metadata"), "true"):
		return http.StatusBadRequest, "Bad request. Required metadata header not specified"
	}
	for key, values := range r.URL.Query() {
		if len(values) > 1 {
			return http.StatusBadRequest, "Bad request. Duplicate query parameter " + key
		}
	}
	return 0, ""
}

// admit keeps to the VM's requests per second.
func (c *Cloud) admit(v *vm) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	v.recent = slices.DeleteFunc(v.recent, func(t time.Time) bool { return now.Sub(t) >= time.Second })
	if v.rate > 0 && len(v.recent) >= v.rate {
		return false
	}
	v.recent = append(v.recent, now)
	return true
}

// instance answers a path below the document: an object as JSON, or as a text that lists its keys; a leaf as text only.
func (h *imds) instance(w http.ResponseWriter, r *http.Request, v *vm, path string, fault Fault) error {
	query := r.URL.Query()
	if !slices.Contains(apiVersions, query.Get("api-version")) {
		return badVersion(w)
	}
	node, ok := descend(h.cloud.document(v, fault.Shapes), path)
	if !ok {
		return fail(w, http.StatusNotFound, "Not found")
	}
	switch format := query.Get("format"); format {
	case "text":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		return fault.send(r.Context(), w, http.StatusOK, []byte(asText(node)))
	case "", "json":
		switch node.(type) {
		case map[string]any, []any:
			return sendJSON(w, fault, r, node)
		}
		return fail(w, http.StatusBadRequest, "Bad request. A leaf needs format=text")
	default:
		return fail(w, http.StatusBadRequest, fmt.Sprintf("Bad request. Unknown format %q", format))
	}
}

// descend walks "/network/interface/0"; elements of a list are named by their index.
func descend(node any, path string) (any, bool) {
	for _, key := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		switch n := node.(type) {
		case map[string]any:
			child, ok := n[key]
			if !ok {
				return nil, false
			}
			node = child
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(n) {
				return nil, false
			}
			node = n[i]
		default:
			return nil, false
		}
	}
	return node, true
}

// asText is a leaf's value, or the keys below a node, those with children marked by a slash.
func asText(node any) string {
	var keys []string
	add := func(key string, child any) {
		switch child.(type) {
		case map[string]any, []any:
			key += "/"
		}
		keys = append(keys, key)
	}
	switch n := node.(type) {
	case map[string]any:
		for key, child := range n {
			add(key, child)
		}
		slices.Sort(keys)
	case []any:
		for i, child := range n {
			add(strconv.Itoa(i), child)
		}
	default:
		return fmt.Sprint(node)
	}
	return strings.Join(keys, "\n")
}

func sendJSON(w http.ResponseWriter, fault Fault, r *http.Request, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fail(w, http.StatusInternalServerError, err.Error())
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	return fault.send(r.Context(), w, http.StatusOK, body)
}

func badVersion(w http.ResponseWriter) error {
	return failWith(w, http.StatusBadRequest, map[string]any{
		"error":           "Bad request. api-version is invalid or was not specified in the request.",
		"newest-versions": []string{"2025-04-07", "2024-07-17", "2024-03-15"},
	})
}

func fail(w http.ResponseWriter, status int, text string) error {
	return failWith(w, status, map[string]any{"error": text})
}

func failWith(w http.ResponseWriter, status int, body map[string]any) error {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(body)
}
