#!/usr/bin/env bash
# Shows that the tests in the cluster can fail: builds the plugins with one wrong change after the other, puts them on the nodes of the
# cluster that runs (REUSE=1 make e2e-smoke), and fails if the named test stays green. Then the right ones are installed again.
. "$(dirname "$0")/lib.sh"
need_root
DOCKER_HOST=$(hack/kind/docker.sh start)
[ -n "$DOCKER_HOST" ] && export DOCKER_HOST || unset DOCKER_HOST
running || die "no cluster runs: REUSE=1 make e2e-smoke"

# patch:test that has to notice
faults="
testdata/mutants/path-host-route.patch:TestKindProbes
e2e/kind/faults/platform-source.patch:TestKindPlatform
testdata/mutants/routes-masquerade-native.patch:TestKindReach
e2e/kind/faults/address-twice.patch:TestKindBurst
"
root=$PWD
dir=$(mktemp -d)
# The node-wide rules are as old as their configuration: without them the next ADD makes them anew.
install_from() {
	(cd "$1" && hack/build.sh ship bin && hack/kind/install.sh)
	local node
	for node in $(nodes); do
		docker exec "$node" nft delete table ip native_vmss 2>/dev/null || true # there was no pod yet
	done
}
trap 'install_from "$root"; rm -rf "$dir"' EXIT

failed=0
for fault in ${FAULT:-$faults}; do
	patch=${fault%:*} test=${fault#*:}
	git clone --quiet --shared . "$dir/clone"
	git -C "$dir/clone" apply --recount "$root/$patch"
	install_from "$dir/clone"
	if go test -tags kind -count=1 -timeout 20m -run "^$test\$" ./e2e/kind >"$dir/log" 2>&1; then
		echo "$patch: $test stays green" && failed=1
	elif grep -q "^--- FAIL: $test " "$dir/log"; then
		echo "$patch: $test is red: $(grep -E '_test.go:[0-9]+: ' "$dir/log" | grep -vm1 'ready after' | sed 's/^ *//' | cut -c1-150)"
	else
		echo "$patch: $test did not run: $(tail -3 "$dir/log")" && failed=1
	fi
	rm -rf "$dir/clone"
done
exit $failed
