#!/usr/bin/env bash
# Tests the plugins in a kind cluster: e2e.sh all|smoke|bench|down
#
# all      both modes of kube-proxy, three rounds of every burst
# smoke    one mode and one round
# down     nothing but the end of a cluster that was left running
# bench    iperf3 between pods, beside bridge + VXLAN: a table in _artifacts/kind-bench.md
#
# REUSE=1 takes a cluster that runs and leaves it running; RUN=REGEXP, MODES="..." and ROUNDS=N choose. On failure the logs of
# everything are in _artifacts/kind.
. "$(dirname "$0")/lib.sh"
. hack/packages.sh
need_root

tags=kind
[ "${1:-}" != bench ] || tags+=,kindbench
case ${1:-} in
all) modes=${MODES:-iptables nftables} rounds=${ROUNDS:-3} ;;
smoke) modes=${MODES:-iptables} rounds=${ROUNDS:-1} ;;
bench) modes=${MODES:-iptables} rounds=${ROUNDS:-10} RUN=TestBenchKind ;;
down) REUSE='' ;;
*) die "usage: e2e.sh all|smoke|bench|down" ;;
esac
hack/kind/need.sh
DOCKER_HOST=$(hack/kind/docker.sh start)
[ -n "$DOCKER_HOST" ] && export DOCKER_HOST || unset DOCKER_HOST

finish() {
	local code=$?
	((code == 0)) || hack/kind/logs.sh || true
	if [ "${REUSE:-}" = 1 ]; then
		echo "the cluster is left running: export KUBECONFIG=$KUBECONFIG ${DOCKER_HOST:+DOCKER_HOST=$DOCKER_HOST}; make e2e-down ends it"
	else
		hack/kind/down.sh
		hack/kind/docker.sh stop
	fi
	exit "$code"
}
trap finish EXIT
[ "$1" != down ] || exit 0

[ "${REUSE:-}" = 1 ] || hack/kind/down.sh
hack/kind/up.sh
echo "the cluster is up after $SECONDS s"
for mode in $modes; do
	hack/kind/proxy.sh "$mode"
	echo "kube-proxy works with $mode"
	MODE=$mode ROUNDS=$rounds go test -tags $tags -count=1 -v -timeout 40m -run "${RUN:-.}" ./e2e/kind
done
echo "e2e $1: passed after $SECONDS s"
