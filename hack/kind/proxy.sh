#!/usr/bin/env bash
# Has kube-proxy work in a mode and waits until it does: proxy.sh iptables|nftables
. "$(dirname "$0")/lib.sh"

mode=${1:?mode}
kubectl -n kube-system get configmap kube-proxy -o yaml | sed "s/^\( *mode: \).*/\1$mode/" | kubectl replace -f - >/dev/null
kubectl -n kube-system rollout restart daemonset/kube-proxy >/dev/null
kubectl -n kube-system rollout status daemonset/kube-proxy --timeout=180s >/dev/null
for node in $(nodes); do
	for _ in {1..60}; do
		now=$(docker exec "$node" curl -sS --max-time 5 http://127.0.0.1:10249/proxyMode 2>/dev/null || true)
		[ "$now" != "$mode" ] || break
		sleep 1
	done
	[ "$now" = "$mode" ] || die "kube-proxy on $node: mode ${now:-unknown}, want $mode"
done
