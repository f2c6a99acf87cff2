//go:build rawcalls

// Package rawcalls is no part of any program: each of its lines is a call that has to pass a failpoint and that the linter must
// refuse outside the one function for it. hack/lint.sh sees that it does.
package rawcalls

import (
	"os"
	"os/exec"
	"syscall"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/procfile"
)

var (
	tx   *bolt.Tx
	db   *bolt.DB
	conn *nftables.Conn
	req  *nl.NetlinkRequest
)

// Calls are never made.
var Calls = []any{
	tx.Commit,
	db.Update,
	db.Batch,
	bolt.Open,
	conn.Flush,
	nftables.New,
	req.Execute,
	nl.GetNetlinkSocketAt,
	netlink.NewHandle,
	netlink.NewHandleAt,
	netlink.LinkDel,
	netlink.RouteAdd,
	netlink.NeighSet,
	exec.Command,
	exec.CommandContext,
	os.StartProcess,
	syscall.Exec,
	syscall.ForkExec,
	os.OpenFile,
	os.Create,
	os.CreateTemp,
	os.WriteFile,
	os.Mkdir,
	os.MkdirAll,
	os.Rename,
	os.Remove,
	os.RemoveAll,
	os.Link,
	os.Symlink,
	os.Truncate,
	unix.Rename,
	unix.Unlink,
	unix.Mkdir,
	syscall.Rename,
	unix.Flock,
	unix.FcntlFlock,
	syscall.Flock,
	procfile.Write,
}
