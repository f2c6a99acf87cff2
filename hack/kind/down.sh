#!/usr/bin/env bash
# Removes the cluster, its fabric and its network, by name and pid; images and caches stay.
. "$(dirname "$0")/lib.sh"
need_root

nodes | xargs -r docker rm --force --volumes >/dev/null
pid=$(cat "$work/fabric.pid" 2>/dev/null || true)
if [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = fabric ]; then
	kill "$pid"
	while alive "$pid"; do sleep 0.1; done
fi
rm -rf "$work"
docker network rm "$network" >/dev/null 2>&1 || true # not there
nft delete table inet $table 2>/dev/null || true     # not there
