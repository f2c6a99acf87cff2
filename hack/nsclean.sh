#!/usr/bin/env bash
# Removes what a test run left behind, and nothing else:
#
#	nsclean.sh list              the test namespaces there are now (nvt-*)
#	nsclean.sh clean FILE RUN    ends processes that carry NVT_RUN=RUN in their environment or live in a test namespace that
#	                             FILE (an earlier list) lacks; then deletes those namespaces by name
#
# It needs no ip command: on a fresh machine the tests install that first.
set -euo pipefail

list() {
	local ns
	for ns in /run/netns/nvt-*; do
		[ ! -e "$ns" ] || basename "$ns"
	done | sort
}

# marked prints the processes of a run: its variable is inherited by all that it starts.
marked() {
	local proc
	for proc in /proc/[0-9]*; do
		! grep -qzxF "NVT_RUN=$1" "$proc/environ" 2>/dev/null || basename "$proc"
	done
}

# inside prints the processes of a namespace.
inside() {
	local proc inode
	inode=$(stat -Lc %i "/run/netns/$1")
	for proc in /proc/[0-9]*; do
		[ "$(readlink "$proc/ns/net" 2>/dev/null || true)" != "net:[$inode]" ] || basename "$proc"
	done
}

end() {
	local pid
	for pid in "$@"; do
		echo "ending process $pid: $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" || true)"
		kill -KILL "$pid" 2>/dev/null || true # it may be gone by itself
	done
}

clean() {
	local ns pids
	mapfile -t pids < <(marked "$2")
	end "${pids[@]}"
	for ns in $(comm -13 "$1" <(list)); do
		mapfile -t pids < <(inside "$ns")
		end "${pids[@]}"
		echo "deleting namespace $ns"
		umount -l "/run/netns/$ns" 2>/dev/null || true # a file without a mount is what a killed test leaves
		rm -f "/run/netns/$ns"
	done
}

case ${1:-} in
list) list ;;
clean) clean "$2" "$3" ;;
*) sed -n '2,/^set/s/^# \?//p' "$0" >&2 && exit 2 ;;
esac
