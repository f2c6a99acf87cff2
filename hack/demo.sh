#!/usr/bin/env bash
# Runs the demo on the binaries in bin/. FAULT=name seeds a fault that the demo has to find.
. "$(dirname "$0")/lib.sh"
need_root
# Not go run: a signal to it would not reach the demo, which then goes on and on.
go build -o _artifacts/demo ./internal/lab/demo
exec _artifacts/demo
