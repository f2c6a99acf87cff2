package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	config = "../../internal/fakeazure/testdata/cloud.json"
	// asMain makes the test binary be the program, so that it is tested as a process.
	asMain = "FAKE_AZURE_TEST_AS_MAIN"
)

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// start runs the program until its "ready" and returns its sockets by "service network".
func start(t *testing.T, args ...string) (*exec.Cmd, map[string]string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asMain+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	addrs := map[string]string{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if fields[0] == "ready" {
			return cmd, addrs
		}
		addrs[fields[0]+" "+fields[1]] = fields[2]
	}
	t.Fatalf("never ready: %s", &stderr)
	return nil, nil
}

// request returns the status and the body; unix is the path of a socket, or "".
func request(t *testing.T, unix, method, url, body string) (int, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	if unix != "" {
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", unix)
		}
	}
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Metadata", "true")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestProcess(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin.sock")
	cmd, addrs := start(t, "-config", config, "-imds", "127.0.0.1:0", "-dns", "127.0.0.1:0", "-wireserver", "127.0.0.1:0,127.0.0.1:0",
		"-admin", socket, "-vm", "vmss_0")
	imds := "http://" + addrs["imds tcp"] + "/metadata/instance?api-version=2021-02-01"
	if status, body := request(t, "", "GET", imds, ""); status != 200 || !strings.Contains(body, `"privateIpAddress":"10.20.0.14"`) {
		t.Errorf("imds: %d %s", status, body)
	}
	if status, body := request(t, "", "GET", "http://"+addrs["wireserver tcp"]+"/?comp=goalstate", ""); status != 200 || !strings.Contains(body, "secret") {
		t.Errorf("wireserver: %d %s", status, body)
	}
	if addrs["dns udp"] == "" || addrs["dns udp"] != addrs["dns tcp"] || addrs["admin unix"] != socket {
		t.Errorf("sockets: %v", addrs)
	}
	if status, body := request(t, socket, "POST", "http://fake/addresses/add", `{"vm":"vmss_0","addresses":["10.20.0.77"]}`); status != 200 {
		t.Errorf("add: %d %s", status, body)
	}
	if status, body := request(t, socket, "POST", "http://fake/faults", `{"vm":"vmss_0","steps":[{"status":410}]}`); status != 200 {
		t.Errorf("faults: %d %s", status, body)
	}
	if status, _ := request(t, "", "GET", imds, ""); status != 410 {
		t.Errorf("fault: %d", status)
	}
	if _, body := request(t, "", "GET", imds, ""); !strings.Contains(body, `"privateIpAddress":"10.20.0.77"`) {
		t.Errorf("added address: %s", body)
	}
	if _, body := request(t, socket, "GET", "http://fake/counters", ""); !strings.Contains(body, `"imds 200":2,"imds 410":1`) {
		t.Errorf("counters: %s", body)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the admin socket is left: %v", err)
	}
}

// Requests are told apart by their source where no VM is named: nobody on loopback is one.
func TestProcess_stranger(t *testing.T) {
	_, addrs := start(t, "-config", config, "-imds", "127.0.0.1:0")
	if status, _ := request(t, "", "GET", "http://"+addrs["imds tcp"]+"/metadata/instance?api-version=2021-02-01", ""); status != 403 {
		t.Errorf("status %d, want 403", status)
	}
}

func TestRun_errors(t *testing.T) {
	tests := []struct {
		name string
		args []string
		code int
		text string
	}{
		{"help", []string{"-h"}, 0, "-imds addresses"},
		{"nothing", nil, 2, "-config is required"},
		{"unknown flag", []string{"-x"}, 2, "not defined: -x"},
		{"argument", []string{"-config", config, "x"}, 2, "there are no arguments"},
		{"no file", []string{"-config", "/nonexistent", "-imds", "127.0.0.1:0"}, 1, "fake-azure: read config: open /nonexistent"},
		{"no socket", []string{"-config", config}, 1, "nothing to listen on"},
		{"unknown VM", []string{"-config", config, "-imds", "127.0.0.1:0", "-vm", "x"}, 1, `vm "x": not found`},
		{"bad address", []string{"-config", config, "-imds", "nowhere"}, 1, "fake-azure: imds: listen tcp"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var stdout, stderr bytes.Buffer
			if code := run(ctx, tt.args, &stdout, &stderr); code != tt.code || !strings.Contains(stderr.String(), tt.text) {
				t.Errorf("%d %q, want %d with %q", code, &stderr, tt.code, tt.text)
			}
		})
	}
}
