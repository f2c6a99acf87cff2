package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	build "github.com/native-vmss/native-vmss/internal/version"
)

// newestSpec is printed where the caller's version is not known.
const newestSpec = "1.1.0"

// Supported are the versions of the specification that both plugins speak. 0.1.0 and 0.2.0 know no interfaces.
func Supported() version.PluginInfo { return version.VersionsStartingFrom("0.3.0") }

// Verb does one command; the context carries its deadline.
type Verb func(ctx context.Context, args *skel.CmdArgs) error

// Verbs are the five commands of a plugin, each with its deadline.
type Verbs struct {
	Add, Del, Check, GC, Status                                    Verb
	AddTimeout, DelTimeout, CheckTimeout, GCTimeout, StatusTimeout time.Duration
}

// timeout is that of a command; checkEnv knows the others.
func (v Verbs) timeout(command string) time.Duration {
	return map[string]time.Duration{
		"ADD": v.AddTimeout, "DEL": v.DelTimeout, "CHECK": v.CheckTimeout, "GC": v.GCTimeout, "STATUS": v.StatusTimeout,
	}[command]
}

// Main runs the plugin and returns the exit code. On failure stdout holds one error document, since libcni drops a failing
// plugin's stderr: its text has to stand alone.
func Main(name string, v Verbs) int {
	// With the default action a runtime that died would kill us between the commit and the answer; so the write fails
	// and ADD undoes itself.
	signal.Ignore(syscall.SIGPIPE)
	spec, err := newestSpec, (*types.Error)(nil)
	command := os.Getenv(commandEnv)
	end := time.Now().Add(v.timeout(command))
	if command != "" && command != "VERSION" {
		spec, err = readInput(end)
	}
	if err == nil {
		err = dispatch(name, v, end)
	}
	if err == nil {
		return 0
	}
	printError(spec, err)
	return 1
}

// dispatch does the command, which ends at a time that includes what stdin took.
func dispatch(name string, v Verbs, end time.Time) *types.Error {
	// skel looks whether CNI_NETNS is our own namespace after it ran ADD or DEL, which makes a second document and leaves
	// what ADD made. ADD looks first, and DEL never enters a namespace, so skel's look is switched off.
	override := os.Getenv(overrideEnv)
	_ = os.Setenv(overrideEnv, "1")
	run := func(verb Verb) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			_ = os.Setenv(overrideEnv, override) // children get the caller's environment
			return guarded(verb, time.Until(end), args)
		}
	}
	return skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: run(v.Add), Del: run(v.Del), Check: run(v.Check), GC: run(v.GC), Status: run(v.Status),
	}, Supported(), fmt.Sprintf("CNI plugin %s %s", name, build.String))
}

const overrideEnv = "CNI_NETNS_OVERRIDE"

// guarded gives the verb a deadline and turns a panic into an error: a runtime must always get its document.
func guarded(verb Verb, timeout time.Duration, args *skel.CmdArgs) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = types.NewError(codeInternal, fmt.Sprintf("panic: %v", p), "")
		}
	}()
	return coded(verb(ctx, args))
}

// textHalf is what is kept of either end of a text that quotes somebody's input: it goes into events and logs.
const textHalf = 4 << 10

// bounded leaves the middle of a long text out.
func bounded(s string) string {
	if len(s) <= 2*textHalf {
		return s
	}
	cut := len(s) - 2*textHalf
	text := fmt.Sprintf("%s … %d bytes left out … %s", s[:textHalf], cut, s[len(s)-textHalf:])
	return strings.ToValidUTF8(text, "")
}

// printError writes the specification's error document; skel's own lacks cniVersion.
func printError(spec string, e *types.Error) {
	doc := struct {
		CNIVersion string `json:"cniVersion"`
		Code       uint   `json:"code"`
		Msg        string `json:"msg"`
		Details    string `json:"details,omitempty"`
	}{spec, e.Code, bounded(e.Msg), bounded(e.Details)}
	if err := json.NewEncoder(os.Stdout).Encode(doc); err != nil && !errors.Is(err, syscall.EPIPE) {
		fmt.Fprintln(os.Stderr, e.Msg)
	}
}
