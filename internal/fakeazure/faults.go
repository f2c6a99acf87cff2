package fakeazure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is one step of a script: what the next IMDS request for the instance document of a VM meets. The zero value is an
// ordinary answer. Requests that IMDS refuses anyway (no Metadata header, X-Forwarded-For, other methods) use up no step.
type Fault struct {
	// Status, if not 0, is answered with Body as it is; without, the document is served, subject to rate and api-version.
	Status int    `json:"status,omitempty"`
	Body   string `json:"body,omitempty"`
	// Headers are added to the answer; "{now+3s}" in a value stands for an HTTP date.
	Headers map[string]string `json:"headers,omitempty"`
	// Delay passes before the answer begins; Drip between two bytes of its body.
	Delay Duration `json:"delay,omitempty"`
	Drip  Duration `json:"drip,omitempty"`
	// Cut closes the connection instead of answering; with a Status, in the middle of the body.
	Cut bool `json:"cut,omitempty"`
	// Shapes change the document; see Shapes for the names.
	Shapes []string `json:"shapes,omitempty"`
	// Times is for how many requests the step is; 0: one, negative: for ever.
	Times int `json:"times,omitempty"`
}

// Script replaces what a VM's next IMDS requests meet; no steps: ordinary answers.
func (c *Cloud) Script(vmName string, steps ...Fault) error {
	for i, step := range steps {
		for _, name := range step.Shapes {
			if shapes[name] == nil {
				return fmt.Errorf("script for %q: step %d: shape %q: %w", vmName, i, name, ErrNotFound)
			}
		}
		if step.Status != 0 && (step.Status < 200 || step.Status > 599) {
			return fmt.Errorf("script for %q: step %d: status %d is not one of an answer", vmName, i, step.Status)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(vmName)
	if err != nil {
		return err
	}
	v.script = nil
	for _, step := range steps {
		if step.Times == 0 {
			step.Times = 1
		}
		v.script = append(v.script, step)
	}
	return nil
}

// next takes one step off the VM's script.
func (c *Cloud) next(v *vm) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(v.script) == 0 {
		return Fault{}
	}
	step := v.script[0]
	if v.script[0].Times--; v.script[0].Times == 0 {
		v.script = v.script[1:]
	}
	return step
}

// errCut ends a connection without, or within, an answer.
var errCut = errors.New("connection is to be cut")

// begin lets the delay pass and sets the headers.
func (f Fault) begin(ctx context.Context, h http.Header) error {
	if err := pause(ctx, time.Duration(f.Delay)); err != nil {
		return err
	}
	for key, value := range f.Headers {
		h.Set(key, expandDate(value, time.Now()))
	}
	if f.Cut && f.Status == 0 {
		return errCut
	}
	return nil
}

// expandDate replaces "{now+3s}", so that a script can be written before its time.
func expandDate(value string, now time.Time) string {
	after, isDate := strings.CutPrefix(value, "{now+")
	d, err := time.ParseDuration(strings.TrimSuffix(after, "}"))
	if !isDate || err != nil {
		return value
	}
	return now.Add(d).UTC().Format(http.TimeFormat)
}

// send writes the body as the step says.
func (f Fault) send(ctx context.Context, w http.ResponseWriter, status int, body []byte) error {
	if f.Cut {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	}
	w.WriteHeader(status)
	size := len(body)
	if f.Drip > 0 {
		size = 1
	}
	for chunk := range slices.Chunk(body, max(size, 1)) {
		if err := f.sendChunk(ctx, w, chunk); err != nil {
			return err
		}
	}
	if f.Cut {
		return errCut
	}
	return nil
}

func (f Fault) sendChunk(ctx context.Context, w http.ResponseWriter, chunk []byte) error {
	if _, err := w.Write(chunk); err != nil {
		return err
	}
	if f.Drip <= 0 && !f.Cut {
		return nil // the end of the handler flushes
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	return pause(ctx, time.Duration(f.Drip))
}

// pause waits, or returns early when the client has gone.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
