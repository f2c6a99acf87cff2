#!/usr/bin/env bash
# Sees to it that a Docker daemon runs: docker.sh start|stop
#
# A daemon that answers is used as it is. Where none does, one is started by hand (Debian's docker.io) with everything it has in
# places of its own, no bridge, and no rule in the machine's netfilter; stop ends that one, by its pid, and no other.
# "docker.sh start" prints the value for DOCKER_HOST, empty for the usual one.
. "$(dirname "$0")/lib.sh"
need_root

readonly run=/run/nvt-docker
readonly host=unix://$run/docker.sock pidfile=$run/docker.pid

# lacks_sys_resource tells whether this machine's bounding set is without CAP_SYS_RESOURCE, bit 24.
lacks_sys_resource() { ! ((0x$(sed -n 's/^CapBnd:\t//p' /proc/self/status) >> 24 & 1)); }

runtime() {
	lacks_sys_resource || return 0
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/kind/lesscaps ./e2e/kind/lesscaps
	install -D bin/kind/lesscaps "$run/lesscaps"
	echo "--add-runtime lesscaps=$run/lesscaps --default-runtime lesscaps"
}

start() {
	if docker version >/dev/null 2>&1; then
		echo "${DOCKER_HOST:-}" # as it was
		return
	fi
	if ! DOCKER_HOST=$host docker version >/dev/null 2>&1; then
		command -v dockerd >/dev/null || die "no Docker daemon answers and there is no dockerd to start (Debian: docker.io)"
		mkdir -p "$run" bin/kind
		# shellcheck disable=SC2046 # a list of flags on purpose
		setsid dockerd --host "$host" --pidfile "$pidfile" --exec-root "$run/exec" --data-root "$cache/docker" --bridge none \
			--iptables=false --ip6tables=false --ip-forward=false --ip-masq=false $(runtime) </dev/null >"$run/dockerd.log" 2>&1 &
		for _ in {1..100}; do
			! DOCKER_HOST=$host docker version >/dev/null 2>&1 || break
			sleep 0.3
		done
		DOCKER_HOST=$host docker version >/dev/null || die "dockerd did not come up: $(tail -3 "$run/dockerd.log")"
	fi
	echo "$host"
}

stop() {
	local pid
	pid=$(cat "$pidfile" 2>/dev/null) || return 0
	[ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 0
	[ -z "$(DOCKER_HOST=$host docker ps -q)" ] || return 0 # somebody else's cluster
	kill "$pid"
	for _ in {1..100}; do
		alive "$pid" || break
		sleep 0.3
	done
	rm -rf "$run"
}

case ${1:-} in
start) start ;;
stop) stop ;;
*) die "usage: docker.sh start|stop" ;;
esac
