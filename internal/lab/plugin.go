package lab

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"syscall"
	"time"
)

// Call is what a runtime hands to a plugin: variables and standard input.
type Call struct {
	Command     string // ADD, DEL, CHECK, GC, STATUS, VERSION
	ContainerID string
	Netns       string
	IfName      string // empty: eth0
	Args        string // CNI_ARGS
	Path        string // CNI_PATH
	Stdin       []byte
	// Env comes after the variables above: a later one wins. "NAME=" sets an empty value.
	Env []string
	// Without names variables that are to be missing altogether, as some runtimes leave them out.
	Without []string
}

func (c Call) environ() []string {
	ifname := c.IfName
	if ifname == "" {
		ifname = "eth0"
	}
	vars := [][2]string{
		{"CNI_COMMAND", c.Command},
		{"CNI_CONTAINERID", c.ContainerID},
		{"CNI_NETNS", c.Netns},
		{"CNI_IFNAME", ifname},
		{"CNI_ARGS", c.Args},
		{"CNI_PATH", c.Path},
		{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}
	missing := map[string]bool{}
	for _, name := range c.Without {
		missing[name] = true
	}
	var env []string
	for _, v := range vars {
		if !missing[v[0]] {
			env = append(env, v[0]+"="+v[1])
		}
	}
	return append(env, c.Env...)
}

// Outcome is how a plugin ended.
type Outcome struct {
	Stdout, Stderr []byte
	// Exit is the exit code; -1 when a signal ended the plugin or it never ran.
	Exit int
	// Err is nil when the plugin ran to its end, whatever the exit code.
	Err  error
	Took time.Duration
}

// OK tells whether the plugin ended with exit code 0.
func (o Outcome) OK() bool { return o.Err == nil && o.Exit == 0 }

// busyTries is how often a plugin is started whose file somebody still holds open for writing: a test that has just written it,
// in a fork that has not reached its exec.
const busyTries = 20

// StartPlugin starts a plugin on the node; wait returns its outcome. In between the caller may kill c.Process.
func (n *Node) StartPlugin(ctx context.Context, binary string, call Call) (c *Cmd, wait func() Outcome) {
	var out, diag bytes.Buffer
	begin := time.Now()
	err := error(syscall.ETXTBSY)
	for try := 0; try < busyTries && errors.Is(err, syscall.ETXTBSY); try++ {
		time.Sleep(time.Duration(try) * time.Millisecond)
		c = n.Command(ctx, binary)
		c.Env = call.environ()
		c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(call.Stdin), &out, &diag
		err = c.Start()
	}
	if err != nil {
		return c, func() Outcome { return Outcome{Exit: -1, Err: err} }
	}
	return c, func() Outcome {
		err := c.Wait()
		o := Outcome{Stdout: out.Bytes(), Stderr: diag.Bytes(), Exit: c.ProcessState.ExitCode(), Took: time.Since(begin)}
		var exit *exec.ExitError
		if err != nil && (!errors.As(err, &exit) || o.Exit < 0) {
			o.Err = err
		}
		return o
	}
}

// RunPlugin runs a plugin on the node as a runtime does.
func (n *Node) RunPlugin(ctx context.Context, binary string, call Call) Outcome {
	_, wait := n.StartPlugin(ctx, binary, call)
	return wait()
}
