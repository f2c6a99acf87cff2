#!/usr/bin/env bash
# Builds a cluster's programs from the Go modules that e2e/kind/tools pins, a module for each origin, once per pin and Go release
# into the user's cache, and links them as bin/kind/<module's folder>: binaries.sh [FOLDER...]. About 15 minutes on 2 cores, all cold.
. "$(dirname "$0")/lib.sh"

export CGO_ENABLED=0
mkdir -p bin/kind
[ $# -gt 0 ] || set -- $(basename -a "$tools"/*/)
for name in "$@"; do
	dir=$(built "$name")
	if [ ! -d "$dir" ]; then
		start=$SECONDS
		echo "building $name for clusters (once)"
		new=$dir.new.$$
		mkdir -p "$new"
		go build -C "$tools/$name" -trimpath -ldflags "$(ldflags "$name")" -o "$new/" tool
		mv -T "$new" "$dir" 2>/dev/null || rm -rf "$new" # another run was first
		echo "built $name in $((SECONDS - start)) s"
	fi
	ln -sfnT "$dir" "bin/kind/$name"
done
