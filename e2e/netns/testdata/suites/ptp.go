// Package main stands in the place of ptp while ptp's own suite runs: each function that the suite calls runs our program as a
// runtime would. hack/suites.sh puts it there.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

func main() {}

func cmdAdd(args *skel.CmdArgs) error    { return run("ADD", args) }
func cmdCheck(args *skel.CmdArgs) error  { return run("CHECK", args) }
func cmdDel(args *skel.CmdArgs) error    { return run("DEL", args) }
func cmdStatus(args *skel.CmdArgs) error { return run("STATUS", args) }

// run starts the program in the namespace of the calling thread. The suite has set all other variables, and takes what is on
// os.Stdout for the result.
func run(command string, args *skel.CmdArgs) error {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("native-vmss")
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(args.StdinData), &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		_, err = os.Stdout.Write(stdout.Bytes())
		return err
	}
	var e types.Error
	if json.Unmarshal(stdout.Bytes(), &e) == nil && e.Msg != "" {
		return &e
	}
	return fmt.Errorf("native-vmss %s: %w, stdout %q, stderr %q", command, err, stdout.Bytes(), stderr.Bytes())
}
