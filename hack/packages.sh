# shellcheck shell=bash
# Sourced: need_packages fails with the name of every Debian package that tests use and that is missing; INSTALL=1 installs them.

# package:command or file that shows it is there
test_packages="nftables:nft iptables:iptables-save conntrack:conntrack iproute2:ip iputils-ping:ping strace:strace gcc:gcc libc6-dev: \
	containernetworking-plugins:/usr/lib/cni/portmap podman:podman crun:crun containerd:containerd runc:runc systemd:/lib/systemd/systemd-networkd"

# present tells whether a package's command is there; libc6-dev has none, so a C program is linked.
present() {
	if [ -n "$1" ]; then
		command -v "$1" >/dev/null
	else
		echo 'int main(void){return 0;}' | gcc -x c -include stdlib.h -o /dev/null - 2>/dev/null
	fi
}

missing_packages() {
	local entry
	for entry in $test_packages; do
		present "${entry#*:}" || echo "${entry%%:*}"
	done
}

need_packages() {
	local missing
	missing=$(missing_packages | xargs)
	if [ -n "$missing" ] && [ "${INSTALL:-}" = 1 ]; then
		echo "installing: $missing"
		apt-get update -qq
		# shellcheck disable=SC2086 # a list of names on purpose
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
		missing=$(missing_packages | xargs)
	fi
	[ -z "$missing" ] || die "missing packages: $missing (INSTALL=1 installs them on Debian and Ubuntu)"
}
