#!/usr/bin/env bash
# Makes the root file system of nodes, kube-proxy and test pods from Debian's packages, once per list of packages into the user's
# cache, and prints the file's name. Packages come from where apt gets this machine's own; two minutes.
. "$(dirname "$0")/lib.sh"
need_root

mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
	sed -n "s/ $suite main$//p" | head -1)}
[ -n "$mirror" ] || die "apt knows no mirror of Debian's $suite: name one, MIRROR=..."

file=$(base)
if [ ! -f "$file" ]; then
	echo "installing Debian packages for nodes and pods (once)" >&2
	mkdir -p "$cache"
	new=$(mktemp -d "$cache/kind-base.XXXXXX")
	trap 'rm -rf "$new" "$new.tar"' EXIT
	debootstrap --variant=minbase --include="$(IFS=, && echo "${base_packages[*]}")" "$suite" "$new" "$mirror" >"$new.log" 2>&1 ||
		die "debootstrap: $(tail -5 "$new.log"), more in $new.log"
	rm -rf "$new"/var/cache/apt/archives/*.deb "$new"/var/lib/apt/lists/* "$new"/usr/share/{doc,man,locale} "$new.log"
	tar --numeric-owner -C "$new" -cf "$new.tar" .
	mv "$new.tar" "$file"
fi
echo "$file"
