#!/usr/bin/env bash
# The long form: 10,000 operations of churn with each of four seeds, the rest for NVT_SOAK, every row of docs/reliability.md by name,
# every fuzz target for FUZZTIME, every mutant.
. "$(dirname "$0")/lib.sh"
export NVT_SOAK=${NVT_SOAK:-5m}
TEST_TIMEOUT=2h hack/test.sh
env -u NVT_SOAK hack/reliability.sh

for pkg in $(go list ./...); do
	for target in $(go test -run '^$' -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
		echo "fuzz $pkg $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" "$pkg"
	done
done
hack/mutants.sh
