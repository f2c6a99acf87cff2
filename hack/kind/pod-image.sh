#!/usr/bin/env bash
# Makes the image of the tests' pods, Debian and the probe, and gives it to every node that has an older one or none.
. "$(dirname "$0")/lib.sh"
need_root

base=$(hack/kind/base.sh)
debian=$(debian "$base")
docker image inspect "$debian" >/dev/null 2>&1 || docker import "$base" "$debian" >/dev/null
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/kind/ ./e2e/kind/probe
component "$pod_image" "$debian" bin/kind/probe 'CMD ["probe", "serve", ":8080"]'
id=$(docker image inspect -f '{{.Id}}' "$pod_image")
for node in $(nodes); do
	[ "$(docker exec "$node" cat /kind/pod-image 2>/dev/null)" != "$id" ] || continue
	docker save "$pod_image" | docker exec -i "$node" ctr -n k8s.io images import - >/dev/null
	docker exec "$node" sh -c "echo $id >/kind/pod-image"
done
