#!/usr/bin/env bash
# Writes what may explain a failure to _artifacts/kind: nodes' journals, pods, and the network state of nodes and fabric.
. "$(dirname "$0")/lib.sh"

dir=_artifacts/kind
mkdir -p "$dir"
bin/kind/kind/kind export logs "$dir" --name "$cluster" >/dev/null 2>&1 || true # a node without crictl: the rest is there
kubectl get pods,services,nodes -A -o wide >"$dir/objects.txt" 2>&1 || true
kubectl get events -A --sort-by=.lastTimestamp >"$dir/events.txt" 2>&1 || true
state='ip -d address; ip route show table all; ip rule; ip neigh; nft list ruleset'
for node in $(nodes); do
	docker exec "$node" sh -c "$state; vmssctl ipam list -a" >"$dir/$node.net.txt" 2>&1 || true
done
ip netns exec nvt-kind-fabric sh -c "$state" >"$dir/fabric.net.txt" 2>&1 || true
cp "$work"/*.log "$dir/" 2>/dev/null || true
echo "logs are in $dir"
