#!/usr/bin/env bash
# Builds the suites of containernetworking/plugins that tests run against our programs: a copy of the pinned module in the user's
# cache, outside the clone, in which a few lines differ (below), once per pin, Go release and this recipe. It links the copy as
# bin/suites; TestNetnsSuites in e2e/netns runs them, and so does "suites.sh run", which says how many specs each has.
. "$(dirname "$0")/lib.sh"

module=e2e/peers/plugins
name=github.com/containernetworking/plugins
ours=e2e/netns/testdata/suites

key=$({
	go -C "$module" env GOVERSION GOARCH
	cat "$module/go.mod" "$module/go.sum" hack/suites.sh "$ours"/*.go
} | sha256sum | cut -c1-16)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/native-vmss/suites-$key

# edit FILE SED-EXPRESSION...: changes a file of the copy. An expression that changes nothing is an error: the suite is no longer
# the one this was written for.
edit() {
	local file=$1 expression
	shift
	for expression in "$@"; do
		sed -i.before "$expression" "$file"
		! cmp -s "$file" "$file.before" || die "$file: nothing matches $expression"
		rm "$file.before"
	done
}

# helper PACKAGE FOLDER: our node_test.go, for suites that make the machine's namespace themselves.
helper() {
	sed "s/^package main\$/package $1/" "$ours/node_test.go" >"$new/$2/asnode_test.go"
}

# as_node FILE PATTERN NAMESPACE: after the line that makes the machine's namespace (and the one that judges its error).
as_node() {
	edit "$1" "/$2/{n;s/\$/\n\t\tasNode($3)/}"
}

change() {
	# The client of all suites waits as long as the kernel does, minutes, for what isn't answered.
	edit "$new/pkg/testutils/echo/client/client.go" 's/^import (/&\n\t"time"/' \
		's/net.Dial("tcp", target)/net.DialTimeout("tcp", target, 15*time.Second)/' \
		's/defer conn.Close()/&\n\tconn.SetDeadline(time.Now().Add(time.Minute))/'

	# ptp's own suite calls functions of ptp; its pods ping their gateway, which is an address on ptp's host link. Ours has none
	# there: they ping what lies beyond the NIC.
	cp "$ours/ptp.go" "$new/plugins/main/ptp/ptp.go"
	helper main plugins/main/ptp
	as_node "$new/plugins/main/ptp/ptp_test.go" 'originalNS, err = testutils.NewNS()' 'originalNS.Path()'
	edit "$new/plugins/main/ptp/ptp_test.go" 's/testutils.Ping(ipc.ip, ipc.gw, 30)/testutils.Ping(ipc.ip, cloudAddress, 30)/'

	# portmap runs in the node that the test makes. A second copy of it has the addresses of ipam-vmss.
	edit "$new/plugins/meta/portmap/portmap_integ_test.go" 's/"type": "ptp"/"type": "native-vmss"/'
	cp -r "$new/plugins/meta/portmap" "$new/plugins/meta/portmap-vmss"
	edit "$new/plugins/meta/portmap-vmss/portmap_integ_test.go" '/"type": "host-local",/,/^\t*\]$/c\"type": "ipam-vmss"'

	# bandwidth: its only spec with ptp is written for an older ginkgo; the present one drops it without a word, and the rates
	# no longer reach the configuration that it makes. With both put right it runs under ptp as well. Less traffic is limited
	# as surely, in less time.
	helper main plugins/meta/bandwidth
	as_node "$new/plugins/meta/bandwidth/bandwidth_linux_test.go" 'hostNs, err = testutils.NewNS()' 'hostNs.Path()'
	edit "$new/plugins/meta/bandwidth/bandwidth_linux_test.go" \
		's/"type": "ptp"/"type": "native-vmss"/' 's/DelegateAdd(context.TODO(), "ptp"/DelegateAdd(context.TODO(), "native-vmss"/' \
		's/"mtu": 512/"mtu": 576/' \
		's/Measure("limits ingress traffic on veth device", func(b Benchmarker) {/It("limits ingress traffic on veth device", func() {/' \
		's/^\t\t\t}, 1)$/\t\t\t})/' \
		's/= b.Time("with\(out\)\? tbf", func() {/= timed(func() {/' \
		's/^\tfor key, value := range inject {/\tconfig["runtimeConfig"] = orig.RuntimeConfig\n&/' \
		's/rateInBytes \* 25/rateInBytes * 4/'
	cat >"$new/plugins/meta/bandwidth/timed_test.go" <<-'GO'
		package main

		import "time"

		func timed(f func()) time.Duration {
			start := time.Now()
			f()
			return time.Since(start)
		}
	GO

	# integration: ours has a smallest MTU; bridge's keys are bridge's.
	local conf=$new/integration/testdata
	helper integration_test integration
	edit "$new/integration/integration_linux_test.go" 's/hostNS.Add()/&\n\t\t\tasNode(hostNS.LongName())/' \
		's,filepath.Abs("../bin"),os.Getenv("SUITE_CNI_PATH")\, error(nil),' 's,/tmp/,/run/suite-,' \
		's/packetInBytes := 20000/packetInBytes := 6000/' 's/Eventually(session, "5s")/Eventually(session)/'
	for file in "$conf/basic-ptp.json" "$conf/chained-ptp-bandwidth.conflist"; do
		edit "$file" 's/"type": "ptp"/"type": "native-vmss"/' 's/"mtu": 512/"mtu": 576/' 's,/tmp/,/run/suite-,'
	done
	for file in "$conf"/*bridge*/*; do
		edit "$file" 's/"type": "bridge"/"type": "native-vmss"/' '/"bridge":/d' '/"isDefaultGateway":/d' 's,/tmp/,/run/suite-,'
	done
}

suites="plugins/main/ptp plugins/meta/portmap plugins/meta/portmap-vmss plugins/meta/bandwidth integration"
if [ ! -d "$dir" ]; then
	echo "building the suites of $name (once)"
	go -C "$module" mod download "$name"
	new=$dir.new.$$
	mkdir -p "$(dirname "$new")"
	cp -r "$(go -C "$module" list -m -f '{{.Dir}}' "$name")" "$new"
	chmod -R u+w "$new"
	change
	for suite in $suites; do
		CGO_ENABLED=0 go -C "$new/$suite" test -c -ldflags '-s -w' -o "$new/$suite/suite.test"
	done
	mv -T "$new" "$dir" 2>/dev/null || rm -rf "$new" # another run was first
fi
mkdir -p bin
ln -sfnT "$dir" bin/suites

[ "${1:-}" = run ] || exit 0
. hack/packages.sh
need_root
need_packages
hack/build.sh ship bin
hack/peers.sh
NETNS_REQUIRED=1 go test -count=1 -v -run '^TestNetnsSuites$' ./e2e/netns
