#!/usr/bin/env bash
# What generated files, formatting and go.mod must look like, and what is skipped or silenced and why.
. "$(dirname "$0")/lib.sh"
need_root

go run ./hack/verify

unformatted=$(git ls-files -z '*.go' | xargs -0 gofmt -l)
[ -z "$unformatted" ] || die "gofmt: $unformatted"
go mod tidy -diff
go -C hack/tools mod tidy -diff
modules=(e2e/peers/*/)
# These ask for half of Kubernetes: only where it was downloaded for a cluster.
! hack/kind/warm.sh || modules+=(e2e/kind/tools/*/)
for module in "${modules[@]}"; do
	go -C "$module" mod tidy -diff
done

# A mutant that no longer applies guards nothing, and running them all takes hours.
for patch in testdata/mutants/*.patch e2e/kind/faults/*.patch; do
	git apply --recount --check "$patch" || die "$patch: make it again, see testdata/mutants/README.md"
done

hack/promtool.sh # the tests beside a golden file may ask for it

# Rewriting the golden files changes nothing. CI starts from a clean clone, so there nothing at all may differ.
state() { git status --porcelain && git diff | sha256sum; }
before=$(state)
mapfile -t golden < <(git grep -l 'flag.Bool("update"' -- '*_test.go' | xargs -rn1 dirname | sort -u | sed 's,^,./,')
[ ${#golden[@]} = 0 ] || NETNS_REQUIRED=1 go test -count=1 "${golden[@]}" -update
[ "$before" = "$(state)" ] || die "golden files are out of date: $(git status --porcelain)"
[ "${CI:-}" != true ] || [ -z "$(git status --porcelain)" ] || die "not clean: $(git status --porcelain)"
