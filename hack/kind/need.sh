#!/usr/bin/env bash
# Fails with the name of every Debian package that is missing for a kind cluster; INSTALL=1 installs them.
. "$(dirname "$0")/lib.sh"
. hack/packages.sh

test_packages="nftables:nft iproute2:ip debootstrap:debootstrap"
# The client is enough where a daemon answers.
docker version >/dev/null 2>&1 || test_packages+=" docker.io:dockerd"
need_packages
