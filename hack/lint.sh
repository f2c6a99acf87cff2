#!/usr/bin/env bash
# Runs the linters of .golangci.yml. golangci-lint is pinned in hack/tools/go.mod and built once per version and Go release
# into the user's cache, outside the clone.
. "$(dirname "$0")/lib.sh"

key=$({
	go env GOVERSION GOARCH
	cat hack/tools/go.mod hack/tools/go.sum
} | sha256sum | cut -c1-16)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/native-vmss/golangci-lint-$key
if [ ! -x "$dir/golangci-lint" ]; then
	echo "building golangci-lint (once, some minutes)"
	mkdir -p "$dir"
	go build -C hack/tools -trimpath -ldflags '-s -w' -o "$dir/new.$$" \
		github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	mv "$dir/new.$$" "$dir/golangci-lint" # two runs at once: the last one wins, both work
fi
"$dir/golangci-lint" run --allow-parallel-runners ./...

# Calls that must pass a failpoint are refused elsewhere: each line of these lists is one.
for list in internal/failpoint/rawcalls/rawcalls.go pkg/routes/rawcalls.go; do
	want=$(awk '/= \[\]any\{/ { on = 1; next } /^}/ { on = 0 } on { print NR }' "$list")
	got=$("$dir/golangci-lint" run --allow-parallel-runners --build-tags rawcalls --enable-only forbidigo "./$(dirname "$list")" |
		sed -n "s,^$list:\\([0-9]*\\):.*(forbidigo)$,\\1,p" | sort -nu) || true
	[ -n "$want" ] && [ "$want" = "$got" ] ||
		die "not refused in $list: lines $(comm -23 <(sort <<<"$want") <(sort <<<"$got") | tr '\n' ' ')"
done
