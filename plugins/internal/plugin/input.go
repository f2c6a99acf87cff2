package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/pkg/node"
)

const (
	commandEnv = "CNI_COMMAND"
	// With a bad environment the caller may be a person at a terminal: then stdin is only worth a short wait.
	stdinPatience = 200 * time.Millisecond
)

// readInput checks what comes before a verb: environment, stdin, version. skel does too, but stops at the first invalid
// variable, takes a version that can't be parsed for undecodable, and doesn't say which version it read, which an error
// document needs. spec is that version, or the newest where it isn't one of ours. Who leaves stdin open is waited for until end.
func readInput(end time.Time) (spec string, bad *types.Error) {
	type input struct {
		data []byte
		err  error
	}
	read := make(chan input, 1)
	go func(from *os.File) {
		data, err := io.ReadAll(from)
		read <- input{data, err}
	}(os.Stdin)
	if bad = checkEnv(os.Getenv); bad != nil {
		select {
		case in := <-read:
			spec, _ = checkVersion(in.data)
		case <-time.After(stdinPatience):
			spec = newestSpec
		}
		return spec, bad
	}
	var in input
	select {
	case in = <-read:
	case <-time.After(time.Until(end)):
		return newestSpec, types.NewError(types.ErrTryAgainLater, "read stdin: the caller did not close it in time", "")
	}
	if in.err != nil {
		return newestSpec, types.NewError(types.ErrIOFailure, fmt.Sprintf("read stdin: %v", in.err), "")
	}
	if spec, bad = checkVersion(in.data); bad != nil {
		return spec, bad
	}
	return spec, handOn(in.data)
}

// handOn makes data the standard input again, for skel: a file in memory, which takes any length and needs nobody who writes.
func handOn(data []byte) *types.Error {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err == nil {
		os.Stdin = os.NewFile(uintptr(fd), "stdin")
		_, err = os.Stdin.Write(data)
	}
	if err == nil {
		_, err = os.Stdin.Seek(0, io.SeekStart)
	}
	if err != nil {
		return types.NewError(types.ErrIOFailure, fmt.Sprintf("keep stdin: %v", err), "")
	}
	return nil
}

// required lists what each command needs, as skel does: the specification makes CNI_PATH optional, but runtimes always set it.
var required = map[string][]string{
	"ADD":    {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"},
	"CHECK":  {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"},
	"DEL":    {"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"},
	"GC":     {"CNI_PATH"},
	"STATUS": {"CNI_PATH"},
}

// checkEnv names every variable that is missing or invalid.
func checkEnv(get func(string) string) *types.Error {
	command := get(commandEnv)
	names, known := required[command]
	if !known {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("%s: unknown command %q", commandEnv, command), "")
	}
	var bad []string
	for _, name := range names {
		value := get(name)
		var err *types.Error
		switch {
		case value == "":
			bad = append(bad, name+": missing")
		case name == "CNI_CONTAINERID":
			err = utils.ValidateContainerID(value)
		case name == "CNI_IFNAME":
			err = utils.ValidateInterfaceName(value)
			if err == nil && command == "ADD" {
				err = checkNewLink(value)
			}
		}
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: %q: %s", name, value, err.Msg))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return types.NewError(types.ErrInvalidEnvironmentVariables, strings.Join(bad, "; "), "")
}

// checkNewLink refuses names that the specification allows and the kernel doesn't give: a template, and those that are
// directories of its own beside the links' (net.ipv4.conf.all). DEL takes them, as it takes everything.
func checkNewLink(name string) *types.Error {
	if strings.Contains(name, "%") || name == "all" || name == "default" {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "the kernel gives no link this name", "")
	}
	if !utf8.ValidString(name) {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "not UTF-8, so the result could not name it", "")
	}
	return nil
}

// checkVersion reads cniVersion and refuses one that we don't speak; versions compare exactly. What else is wrong with the
// document is for others to say, but for what skel would say in Go's own words.
func checkVersion(stdin []byte) (spec string, bad *types.Error) {
	var c struct { // as skel reads it: the case of keys makes no difference
		CNIVersion json.RawMessage `json:"cniVersion"`
		Name       json.RawMessage `json:"name"`
	}
	if err := json.Unmarshal(stdin, &c); err != nil || bytes.Equal(bytes.TrimSpace(stdin), []byte("null")) {
		return newestSpec, types.NewError(types.ErrDecodingFailure, "stdin is no JSON object"+node.JSONFault(err), "")
	}
	if absent(c.CNIVersion) {
		return newestSpec, types.NewError(types.ErrIncompatibleCNIVersion, "cniVersion: missing", "")
	}
	if json.Unmarshal(c.CNIVersion, &spec) != nil {
		return newestSpec, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("cniVersion: %s is not a string", bounded(string(c.CNIVersion))), "")
	}
	if !slices.Contains(Supported().SupportedVersions(), spec) {
		details := (&version.Reconciler{}).Check(spec, Supported()).Details()
		return newestSpec, types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", details)
	}
	var name string
	if !absent(c.Name) && json.Unmarshal(c.Name, &name) != nil {
		return spec, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("name: %s is not a string", bounded(string(c.Name))), "")
	}
	return spec, nil
}

// absent tells whether there is no value, as encoding/json and skel have it: null and the empty string are none.
func absent(raw json.RawMessage) bool {
	return slices.Contains([]string{"", "null", `""`}, string(raw))
}
