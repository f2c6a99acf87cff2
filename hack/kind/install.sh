#!/usr/bin/env bash
# Installs the plugins on every node as the README tells a user to, line by line; the conflist is the one with hostPort.
. "$(dirname "$0")/lib.sh"

readonly conflist=portmap.conflist
# What the README has between these two lines, less sudo and comments.
steps=$(sed -n '/^sudo install .* vmssctl /,/^sudo install .*conflist/s/^sudo \([^#]*[^# ]\).*/\1/p' README.md)
[ "$(wc -l <<<"$steps")" = 4 ] || die "README.md: where are the four lines of the quick start? $steps"

for node in $(nodes); do
	docker exec "$node" mkdir -p /root/native-vmss /etc/cni/net.d
	for file in bin/vmssctl bin/native-vmss bin/ipam-vmss "cni-conf/$conflist"; do
		docker cp -q "$file" "$node:/root/native-vmss/"
	done
	docker exec -w /root/native-vmss "$node" bash -euxc "${steps//10-native-vmss.conflist/$conflist}" >"$work/install-$node.log" 2>&1 ||
		die "install on $node: $(cat "$work/install-$node.log")"
done
