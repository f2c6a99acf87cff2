#!/usr/bin/env bash
# Tells by its exit code whether all that takes long to make for a kind cluster is in the cache.
. "$(dirname "$0")/lib.sh"

[ -f "$(base)" ] || exit 1
for module in "$tools"/*/; do
	[ -d "$(built "$(basename "$module")")" ] || exit 1
done
