package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// Runtime is a container runtime as far as networking goes: libcni with one conflist, plugins run on one node.
type Runtime struct {
	List *libcni.NetworkConfigList

	cni *libcni.CNIConfig
}

// Pod is what a runtime knows of a sandbox.
type Pod struct {
	ID     string // container id
	Netns  string // path; may be empty for Del
	IfName string // empty: eth0
	// Namespace, Name and UID become K8S_* arguments; an empty Name sends none.
	Namespace, Name, UID string
	// Capabilities are capability arguments, such as "portMappings".
	Capabilities map[string]any
}

// Runtime reads a conflist. binDirs are searched for plugins.
func (n *Node) Runtime(conflist []byte, binDirs ...string) (*Runtime, error) {
	list, err := libcni.ConfListFromBytes(conflist)
	if err != nil {
		return nil, fmt.Errorf("read conflist: %w", err)
	}
	cache, err := os.MkdirTemp(n.lab.Dir, "cni-cache-")
	if err != nil {
		return nil, err
	}
	return &Runtime{List: list, cni: libcni.NewCNIConfigWithCacheDir(binDirs, cache, &nodeExec{node: n})}, nil
}

// Add attaches a pod.
func (r *Runtime) Add(ctx context.Context, p Pod) (types.Result, error) {
	return r.cni.AddNetworkList(ctx, r.List, p.conf())
}

// Del detaches a pod.
func (r *Runtime) Del(ctx context.Context, p Pod) error {
	return r.cni.DelNetworkList(ctx, r.List, p.conf())
}

// Check asks whether an attachment is as it should be.
func (r *Runtime) Check(ctx context.Context, p Pod) error {
	return r.cni.CheckNetworkList(ctx, r.List, p.conf())
}

// GC removes all attachments but those of the given pods.
func (r *Runtime) GC(ctx context.Context, alive ...Pod) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, p := range alive {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.ID, IfName: p.ifName()})
	}
	return r.cni.GCNetworkList(ctx, r.List, args)
}

// Status asks whether the node can serve pods.
func (r *Runtime) Status(ctx context.Context) error { return r.cni.GetStatusNetworkList(ctx, r.List) }

func (p Pod) ifName() string {
	if p.IfName == "" {
		return "eth0"
	}
	return p.IfName
}

func (p Pod) conf() *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{ContainerID: p.ID, NetNS: p.Netns, IfName: p.ifName(), CapabilityArgs: p.Capabilities}
	if p.Name != "" {
		rt.Args = [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", p.Namespace},
			{"K8S_POD_NAME", p.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.ID},
			{"K8S_POD_UID", p.UID},
		}
	}
	return rt
}

// nodeExec runs plugins inside a node; the rest is libcni's own.
type nodeExec struct {
	node *Node
	version.PluginDecoder
}

var _ invoke.Exec = (*nodeExec)(nil)

// ExecPlugin runs one plugin. libcni wants a failed plugin's own error object.
func (e *nodeExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	o := e.node.RunPlugin(ctx, path, Call{Stdin: stdin, Env: environ})
	switch {
	case o.Err != nil:
		return nil, fmt.Errorf("run %s: %w: %s", path, o.Err, o.Stderr)
	case o.Exit == 0:
		return o.Stdout, nil
	}
	said := &types.Error{}
	if err := json.Unmarshal(o.Stdout, said); err != nil || said.Msg == "" {
		return nil, fmt.Errorf("run %s: exit %d without an error object: %q %s", path, o.Exit, o.Stdout, o.Stderr)
	}
	return nil, said
}

// FindInPath looks on the host: nodes share its file system.
func (e *nodeExec) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ErrorCode returns the code of a plugin's error object, or 0.
func ErrorCode(err error) uint {
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}
