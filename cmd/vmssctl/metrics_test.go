package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/accounting/export"
)

func runMetrics(t *testing.T, open traffic, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := metricsCommand(open)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{}, args...)) // nil is the arguments of the process
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestMetrics(t *testing.T) {
	calls, closed := 0, 0
	open := func() (export.Source, func(), error) {
		return func(context.Context) (accounting.Usage, error) { calls++; return twoReadings()[1], nil }, func() { closed++ }, nil
	}
	page, err := runMetrics(t, open)
	if err != nil || calls != 1 || closed != 1 || !strings.HasSuffix(page, "\n") ||
		!strings.Contains(page, `native_vmss_pod_network_bytes_total{class="cluster",direction="rx",namespace="team-a",pod="web-0"} 1.025e+07`+"\n") ||
		!strings.Contains(page, "native_vmss_accounting_stale 0\n") {
		t.Errorf("%v, %d calls, closed %d times:\n%s", err, calls, closed, page)
	}
	page, err = runMetrics(t, open, "--pods=false")
	if err != nil || strings.Contains(page, "pod=") || !strings.Contains(page, `namespace="team-a"`) {
		t.Errorf("%v\n%s", err, page)
	}
}

// A page that can't be made is no page.
func TestMetrics_fails(t *testing.T) {
	broken := errors.New("store unusable")
	for name, open := range map[string]traffic{
		"open": func() (export.Source, func(), error) { return nil, nil, broken },
		"read": func() (export.Source, func(), error) {
			return func(context.Context) (accounting.Usage, error) { return twoReadings()[1], broken }, func() {}, nil
		},
	} {
		if page, err := runMetrics(t, open); !errors.Is(err, broken) || page != "" {
			t.Errorf("%s: %v, %q", name, err, page)
		}
	}
}
