// Command lesscaps is an OCI runtime for machines that lack CAP_SYS_RESOURCE, where runc can start no privileged container: it
// takes from a container's configuration what the kernel would refuse (that capability, resource limits, a lowered OOM score) and
// goes on as runc with the same arguments. Docker is told of it only where it is needed: hack/kind/docker.sh.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const missing = "CAP_SYS_RESOURCE"

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "lesscaps:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	for _, file := range configs(args[1:]) {
		if err := rewrite(file); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return unix.Exec(runc, args, os.Environ())
}

// configs names the files that a command line gives to runc: a bundle's, and that of a further process.
func configs(args []string) []string {
	var files []string
	for i, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		switch name {
		case "--bundle", "-b":
			files = append(files, filepath.Join(value, "config.json"))
		case "--process", "-p":
			files = append(files, value)
		}
	}
	return files
}

func rewrite(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	process, ok := doc["process"].(map[string]any)
	if !ok {
		process = doc // the file of a further process is just this part
	}
	lessen(process)
	if b, err = json.Marshal(doc); err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}

func lessen(process map[string]any) {
	delete(process, "rlimits")
	delete(process, "oomScoreAdj")
	caps, ok := process["capabilities"].(map[string]any)
	if !ok {
		return
	}
	for set, list := range caps {
		if names, ok := list.([]any); ok {
			caps[set] = slices.DeleteFunc(names, func(c any) bool { return c == missing })
		}
	}
}
