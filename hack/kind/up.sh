#!/usr/bin/env bash
# Brings the cluster up, on the fabric and with the plugins of this clone, or takes the one that runs: up.sh. Run docker.sh first.
# NODE_IMAGE=NAME takes an image of kind's own, where a registry can be reached, and builds none.
. "$(dirname "$0")/lib.sh"
need_root

subnet=10.20.0.0/16 gateway=10.20.0.1 range=10.20.0.8/29 # as internal/lab's cloud has it; Azure keeps the first four addresses

make_network() {
	docker network inspect "$network" >/dev/null 2>&1 || docker network create --driver bridge --subnet $subnet --gateway $gateway \
		--ip-range $range --opt com.docker.network.bridge.name="$network" \
		--opt com.docker.network.bridge.enable_ip_masquerade=false "$network" >/dev/null
	# Until the fabric has the nodes, nothing of them may leave by the machine's uplink.
	nft -f - <<-EOF
		table inet $table
		delete table inet $table
		table inet $table {
			chain forward {
				type filter hook forward priority -200
				iifname "$network" oifname != "$network" counter drop
			}
		}
	EOF
}

start_fabric() {
	local node nodes=()
	for node in $(nodes); do
		nodes+=("$node=$(docker inspect -f '{{.State.Pid}}' "$node")")
	done
	setsid bin/kind/fabric -network "$network" -admin "$work/fabric.sock" "${nodes[@]}" </dev/null >"$work/fabric.log" 2>&1 &
	echo $! >"$work/fabric.pid"
	for _ in {1..100}; do
		! grep -qx ready "$work/fabric.log" || return 0
		alive "$(cat "$work/fabric.pid")" || break
		sleep 0.3
	done
	die "the fabric did not come up: $(cat "$work/fabric.log")"
}

create() {
	local image=${NODE_IMAGE:-} log=$work/create.log
	[ -n "$image" ] || image=$(hack/kind/images.sh)
	make_network
	echo "creating the cluster"
	mkdir -p "$work"
	KIND_EXPERIMENTAL_DOCKER_NETWORK=$network bin/kind/kind/kind create cluster --name "$cluster" --image "$image" --retain \
		--config e2e/kind/cluster.yaml --kubeconfig "$KUBECONFIG" --wait 0 >"$log" 2>&1 || die "kind: $(cat "$log")"
	docker cp -q "$cluster-control-plane:/usr/bin/kubectl" bin/kind/kubectl
	start_fabric
	# Names that the cluster doesn't know are asked of Azure's resolver, as on a VM; the machine's own has no part in it.
	kubectl -n kube-system get configmap coredns -o yaml | sed 's,/etc/resolv.conf,168.63.129.16,' | kubectl replace -f -
}

hack/kind/binaries.sh ${NODE_IMAGE:+kind}
hack/peers.sh plugins
hack/build.sh ship bin
go build -trimpath -o bin/kind/ ./e2e/kind/fabric ./e2e/kind/probe

if running; then
	echo "taking the cluster that runs"
else
	hack/kind/down.sh
	create
fi
hack/kind/pod-image.sh
hack/kind/install.sh
kubectl wait --for=condition=Ready nodes --all --timeout=180s
kubectl -n kube-system rollout status deployment/coredns --timeout=180s
