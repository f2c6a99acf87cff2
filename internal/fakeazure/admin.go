package fakeazure

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"
)

// adminRequest is the body of all POSTs; each uses some of it.
type adminRequest struct {
	VM        string   `json:"vm"`
	NIC       string   `json:"nic"` // "": the primary one
	Addresses Addrs    `json:"addresses"`
	Count     int      `json:"count"` // without addresses: how many the cloud picks
	Lag       Duration `json:"lag"`
	PerSecond int      `json:"perSecond"`
	Steps     []Fault  `json:"steps"`
}

// Admin returns the handler by which people and other processes change the cloud and read its books; the package documentation
// lists the paths. It belongs on a unix socket: it asks nobody who they are.
func (c *Cloud) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /topology", func(w http.ResponseWriter, _ *http.Request) { reply(w, c.Snapshot(), nil) })
	mux.HandleFunc("GET /counters", func(w http.ResponseWriter, _ *http.Request) { reply(w, c.Counters(), nil) })
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, r *http.Request) {
		reply(w, c.Requests(r.URL.Query().Get("vm")), nil)
	})
	mux.HandleFunc("DELETE /requests", func(w http.ResponseWriter, _ *http.Request) { c.ForgetRequests(); reply(w, "ok", nil) })
	mux.HandleFunc("GET /shapes", func(w http.ResponseWriter, _ *http.Request) { reply(w, Shapes(), nil) })
	post := map[string]func(adminRequest) (any, error){
		"/addresses/add":    c.adminAdd,
		"/addresses/remove": func(r adminRequest) (any, error) { return "ok", c.RemoveAddresses(r.VM, r.NIC, r.Addresses...) },
		"/faults":           func(r adminRequest) (any, error) { return "ok", c.Script(r.VM, r.Steps...) },
		"/lag":              func(r adminRequest) (any, error) { return "ok", c.SetIMDSLag(r.VM, time.Duration(r.Lag)) },
		"/rate":             func(r adminRequest) (any, error) { return "ok", c.SetIMDSRate(r.VM, r.PerSecond) },
		"/vms/remove":       func(r adminRequest) (any, error) { return "ok", c.RemoveVM(r.VM) },
	}
	for path, fn := range post {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			var in adminRequest
			if err := decode(r.Body, &in); err != nil {
				reply(w, nil, fmt.Errorf("decode body: %w", err))
				return
			}
			out, err := fn(in)
			reply(w, out, err)
		})
	}
	mux.HandleFunc("POST /vms/add", func(w http.ResponseWriter, r *http.Request) {
		var v VM
		err := decode(r.Body, &v)
		if err == nil {
			err = c.AddVM(v)
		}
		reply(w, "ok", err)
	})
	return mux
}

// adminAdd answers with the addresses, which are news where the cloud picked them.
func (c *Cloud) adminAdd(r adminRequest) (any, error) {
	if r.Count > 0 && len(r.Addresses) == 0 {
		return c.AssignAddresses(r.VM, r.NIC, r.Count)
	}
	return []netip.Addr(r.Addresses), c.AddAddresses(r.VM, r.NIC, r.Addresses...)
}

func reply(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	switch {
	case errors.Is(err, ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, ErrInUse), errors.Is(err, ErrSubnetFull), errors.Is(err, ErrLimit):
		status = http.StatusConflict
	case err != nil:
		status = http.StatusBadRequest
	}
	if err != nil {
		v = map[string]string{"error": err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client went away
}
