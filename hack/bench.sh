#!/usr/bin/env bash
# Benchmarks of the packages, then whole processes beside their peers (bench/ is a module of its own, with the peers' versions).
. "$(dirname "$0")/lib.sh"
need_root
go test -run '^$' -bench . -benchmem ./...
go run -C bench .
