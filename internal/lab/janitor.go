package lab

import (
	"io"
	"os"
	"os/exec"
	"syscall"
)

// janitorScript waits until nobody holds the other end of its standard input any more, which the kernel sees to even when the
// lab's process is killed, and then removes what that process would have removed. It must outlive Ctrl-C.
const janitorScript = `
trap '' INT TERM HUP
read -r answer
[ "$answer" = done ] && exit 0
for n in /run/netns/"$1"*; do
	[ -e "$n" ] || continue
	umount -l "$n" 2>/dev/null
	rm -f "$n"
done
rm -rf "$2"
for try in 1 2 3 4 5; do
	groups=$(find /sys/fs/cgroup -maxdepth 2 -name "${1%-}")
	[ -n "$groups" ] || break
	find $groups -name cgroup.procs -exec cat {} + | sort -u | xargs -r kill -KILL
	sleep 0.2
	find $groups -depth -type d -exec rmdir {} +
done 2>/dev/null
`

// janitor cleans up after a lab whose process died.
type janitor struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

func startJanitor(prefix, dir string) (*janitor, error) {
	cmd := exec.Command("/bin/sh", "-c", janitorScript, "janitor", prefix, dir)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &janitor{cmd: cmd, pipe: pipe}, cmd.Start()
}

// dismiss tells the janitor that nothing is left to do. A nil or unstarted janitor is fine.
func (j *janitor) dismiss() {
	if j == nil || j.cmd.Process == nil {
		return
	}
	_, _ = io.WriteString(j.pipe, "done\n")
	j.pipe.Close()
	_ = j.cmd.Wait()
}
