#!/usr/bin/env bash
# Builds the programs of others that tests run with ours: the tools of each module in e2e/peers, pinned in its go.mod, once per pin
# and Go release into the user's cache, outside the clone. It links them as bin/peers/<module's folder>: peers.sh [FOLDER...].
. "$(dirname "$0")/lib.sh"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/native-vmss
[ ! -L bin/peers ] || rm bin/peers # an older layout
mkdir -p bin/peers
[ $# -gt 0 ] || set -- e2e/peers/*/
for name in "$@"; do
	name=$(basename "$name") module=e2e/peers/$(basename "$name")
	key=$({
		go -C "$module" env GOVERSION GOARCH
		cat "$module/go.mod" "$module/go.sum"
	} | sha256sum | cut -c1-16)
	dir=$cache/peers-$name-$key
	if [ ! -d "$dir" ]; then
		echo "building $name that tests run with ours (once)"
		new=$dir.new.$$
		mkdir -p "$new"
		CGO_ENABLED=0 go build -C "$module" -trimpath -ldflags '-s -w' -o "$new/" tool
		mv -T "$new" "$dir" 2>/dev/null || rm -rf "$new" # another run was first
	fi
	ln -sfnT "$dir" "bin/peers/$name"
done
