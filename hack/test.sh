#!/usr/bin/env bash
# Vets and tests everything, race detector on: test.sh [REGEXP OF TEST NAMES]
. "$(dirname "$0")/lib.sh"
. hack/packages.sh
need_root
need_packages

build_for_tests

go vet ./...
go vet -tags failpoint ./...
go vet -tags kind,kindbench ./e2e/kind
# A missing privilege fails instead of skipping.
# One package at a time: the kernel has one neighbour table for all namespaces, and several packages fill it on purpose.
NETNS_REQUIRED=1 go test -race -count=1 -p 1 -timeout "${TEST_TIMEOUT:-30m}" -run "${1:-.}" ./...
# What is behind the tag: tests of failpoints inside their packages.
with_tag() { grep -rl --include='*_test.go' '^//go:build failpoint' cmd internal pkg plugins; }
mapfile -t tagged < <(with_tag | xargs -n1 dirname | sort -u | sed 's,^,./,')
NETNS_REQUIRED=1 go test -race -count=1 -p 1 -tags failpoint -run "${1:-ailpoint}" "${tagged[@]}"
