# shellcheck shell=bash
# Sourced by the scripts of hack/kind: names, versions and places that they share. All that is made is called nvt-… and lives in
# the user's cache, in Docker, or in /run/nvt-kind.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

readonly cluster=${KIND_CLUSTER:-nvt-kind}
readonly network=${KIND_NETWORK:-nvt-kind}
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/native-vmss
readonly work=/run/$cluster # of the cluster that runs: sockets, kubeconfig, logs
readonly tools=e2e/kind/tools
readonly suite=bookworm # of Debian, in nodes and pods
readonly table=nvt_kind # of the machine's nftables, while there is a cluster
export KUBECONFIG=$work/kubeconfig

readonly pod_image=nvt-kind-pod:latest # the tests name it too

# kubectl is the nodes' own, copied out of the control plane.
kubectl() { bin/kind/kubectl "$@"; }

# base_packages are what nodes, kube-proxy and the tests' pods have of Debian.
readonly base_packages=(
	systemd systemd-sysv dbus util-linux mount kmod procps hostname # a node's init and what kind's entrypoint calls
	iptables nftables conntrack iproute2 ethtool                    # kubelet, kube-proxy, portmap
	runc ca-certificates
	iperf3 iputils-ping curl tcpdump socat # pods of the tests
)

# base prints the name of their root file system's archive.
base() { echo "$cache/kind-base-$(echo "$suite ${base_packages[*]}" | key).tar"; }

# nodes prints the names of the cluster's nodes, the control plane first.
nodes() { docker ps --filter "label=io.x-k8s.kind.cluster=$cluster" --format '{{.Names}}' | sort; }

# running tells whether there is a cluster, on a fabric that lives.
running() {
	[ -n "$(nodes)" ] && [ "$(cat "/proc/$(cat "$work/fabric.pid" 2>/dev/null)/comm" 2>/dev/null)" = fabric ] &&
		docker exec "$cluster-control-plane" kubectl --kubeconfig /etc/kubernetes/admin.conf get --raw /readyz >/dev/null 2>&1
}

# debian ARCHIVE prints the name of its image.
debian() { echo "nvt-kind-base:$(basename "$1" .tar)"; }

# build ARGS...: docker build, whose words are of interest only when it fails. BuildKit is an extra that Debian's client lacks.
build() {
	local log
	log=$(DOCKER_BUILDKIT=0 docker build --network none --quiet "$@" 2>&1) || die "docker build: $log"
}

# component NAME FROM PROGRAM [INSTRUCTION]: an image of one program in /usr/local/bin.
component() {
	local dir
	dir=$(mktemp -d "$cache/kind-component.XXXXXX")
	cp -L "$3" "$dir/"
	printf 'FROM %s\nCOPY * /usr/local/bin/\nENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n%s\n' "$2" "${4:-}" |
		build --tag "$1" --file - "$dir"
	rm -r "$dir"
}

# alive tells whether a process runs: one that has ended and that nobody has waited for has no command line.
alive() { [ -n "$(tr -d '\0' 2>/dev/null <"/proc/$1/cmdline")" ]; }

# pin MODULE-PATH MODULE-FOLDER prints the version that the folder's go.mod pins.
pin() { sed -n "s,^\t$1 \(v[^ ]*\).*,\1,p" "$tools/$2/go.mod" | head -1; }

# Kubernetes refuses to work with a version that it can't read from its own binary.
kubernetes_version() {
	local v=k8s.io/component-base/version version
	version=$(pin k8s.io/kubernetes kubernetes)
	echo "-X $v.gitVersion=$version -X $v.gitTreeState=clean" \
		"-X $v.gitMajor=$(cut -d. -f1 <<<"${version#v}") -X $v.gitMinor=$(cut -d. -f2 <<<"$version")"
}

# ldflags MODULE-FOLDER prints the linker's flags for its programs.
ldflags() {
	echo "-s -w$([ "$1" != kubernetes ] || echo " $(kubernetes_version)")"
}

# built MODULE-FOLDER prints where its programs are once they are built: a folder for each pin, Go release and set of flags.
built() {
	echo "$cache/kind-$1-$({
		go -C "$tools/$1" env GOVERSION GOARCH
		cat "$tools/$1/go.mod" "$tools/$1/go.sum"
		ldflags "$1"
	} | key)"
}

# key prints the hash of what it reads, as long as a folder's name needs.
key() { sha256sum | cut -c1-16; }
