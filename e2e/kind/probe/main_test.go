package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestGet_tells_who_asked(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(whoami))
	defer server.Close()
	var out bytes.Buffer
	if err := run([]string{"get", server.URL + "/", server.URL + "/ping"}, &out); err != nil || out.String() != "127.0.0.1\n\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestHold(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(whoami))
	defer server.Close()
	addr := server.Listener.Addr().String()

	t.Run("counts answers", func(t *testing.T) {
		var out bytes.Buffer
		if err := run([]string{"hold", addr, "200ms"}, &out); err != nil {
			t.Fatal(err)
		}
		var h held
		if err := json.Unmarshal(out.Bytes(), &h); err != nil || h.Answered < 1 {
			t.Errorf("%s, %v", out.String(), err)
		}
	})
	t.Run("a broken connection is an error", func(t *testing.T) {
		go func() {
			time.Sleep(300 * time.Millisecond)
			server.CloseClientConnections()
		}()
		var out bytes.Buffer
		if err := run([]string{"hold", addr, "30s"}, &out); err == nil || !strings.HasPrefix(err.Error(), "after ") {
			t.Errorf("%v, %s", err, out.String())
		}
	})
}

func TestRun_errors(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := ln.Addr().String()
	ln.Close()
	tests := []struct {
		name string
		args []string
		text string
	}{
		{"nothing", nil, "usage"},
		{"unknown", []string{"x"}, "usage"},
		{"nobody there", []string{"get", "http://" + closed}, "refused"},
		{"nobody to hold", []string{"hold", closed, "1s"}, "refused"},
		{"no time", []string{"hold", closed, "soon"}, "invalid duration"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := run(tt.args, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, want %q", err, tt.text)
			}
		})
	}
}
