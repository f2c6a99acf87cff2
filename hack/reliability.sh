#!/usr/bin/env bash
# Runs the tests that docs/reliability.md names, each by its name, and fails unless all pass; ROW=regexp: those of the rows that match.
. "$(dirname "$0")/lib.sh"
. hack/packages.sh
need_root
need_packages
build_for_tests
NETNS_REQUIRED=1 exec go run ./hack/reliability ${ROW:+"$ROW"}
