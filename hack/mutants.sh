#!/usr/bin/env bash
# Shows that the tests can fail: mutants.sh [FLAGS]; M=name runs one. See testdata/mutants/README.md.
. "$(dirname "$0")/lib.sh"
need_root
# shellcheck disable=SC2086 # M may hold several names
exec go run ./hack/mutants "$@" ${M:-}
