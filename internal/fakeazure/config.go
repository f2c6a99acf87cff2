package fakeazure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Load builds a cloud from a file; the package documentation explains the format.
func Load(path string) (*Cloud, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	t, err := ParseTopology(b)
	if err != nil {
		return nil, fmt.Errorf("read config %s: %w", path, err)
	}
	return New(t)
}

// ParseTopology reads a config. Unknown keys are errors.
func ParseTopology(b []byte) (Topology, error) {
	var t Topology
	err := decode(bytes.NewReader(b), &t)
	return t, err
}

// decode reads one JSON value and nothing after it.
func decode(r io.Reader, into any) error {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}
