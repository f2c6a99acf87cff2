# shellcheck shell=bash
# Sourced by the other scripts: strict mode, the repository as working directory, Go in PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
	echo "$*" >&2
	exit 1
}

# sudo's secure_path lacks Go's usual place, su's PATH lacks sbin.
PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
command -v go >/dev/null || die "go (1.21 or newer) is not in PATH; with sudo: sudo env PATH=\"\$PATH\" make ..."

# Any Go from 1.21 on fetches the toolchain that go.mod asks for; some distributions switch that off.
export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}
# The version is set by build.sh; git may refuse to answer for a clone that another user owns.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"

need_root() {
	[ "$(id -u)" = 0 ] || die "this needs root (network namespaces): run it with sudo"
}

# What the tests start as processes.
build_for_tests() {
	hack/build.sh ship bin
	hack/build.sh failpoint bin/failpoint
	hack/build.sh race bin/race
	hack/peers.sh
	hack/promtool.sh
	hack/suites.sh
}
