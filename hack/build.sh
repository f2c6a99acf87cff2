#!/usr/bin/env bash
# Builds every main of plugins/ and cmd/ into DIR, named after its folder: build.sh ship|failpoint|race DIR
. "$(dirname "$0")/lib.sh"

kind=${1:-ship} out=${2:-bin}
version=$(git describe --tags --always --dirty 2>/dev/null || echo dev)
flags=(-trimpath -ldflags "-s -w -X github.com/native-vmss/native-vmss/internal/version.String=$version")
export CGO_ENABLED=0

case $kind in
ship) ;;
failpoint) flags+=(-tags failpoint) ;;
race)
	flags+=(-race)
	export CGO_ENABLED=1
	;;
*) die "build.sh: unknown kind $kind" ;;
esac

mkdir -p "$out"
for dir in plugins/*/ cmd/*/; do
	name=$(basename "$dir")
	[ "$name" != internal ] || continue # what the mains share

	go build "${flags[@]}" -o "$out/$name" "./$dir"
done
