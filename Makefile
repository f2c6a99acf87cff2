# Every target is one script in hack/. Variables: INSTALL=1 (test, suites, soak), FAULT=name (demo), M=name (mutants),
# ROW=regexp (reliability), REUSE=1, RUN=regexp, MODES, ROUNDS, NODE_IMAGE (e2e, e2e-smoke, bench-kind).
.PHONY: build bin/failpoint bin/race demo test test-netns suites reliability e2e e2e-smoke e2e-down soak bench bench-kind lint verify mutants clean

# The binaries people install: static, in bin/, named after their folder.
build:
	@hack/build.sh ship bin

# The same mains with failpoints compiled in, and with the race detector: for tests only.
bin/failpoint:
	@hack/build.sh failpoint bin/failpoint

bin/race:
	@hack/build.sh race bin/race

# Two nodes of a fake cloud in network namespaces, with the built binaries.
demo: build
	@hack/demo.sh

test:
	@hack/test.sh

# The tests that need namespaces, and no others.
test-netns:
	@hack/test.sh '^TestNetns'

# The suites of containernetworking/plugins with our programs in the place of ptp; test runs them too.
suites:
	@hack/suites.sh run

# The tests that docs/reliability.md names, or those of the rows that match ROW.
reliability:
	@hack/reliability.sh

# A real Kubernetes: kind, two nodes, the built plugins. REUSE=1 takes a cluster that runs and leaves it; e2e-down ends it.
e2e:
	@hack/kind/e2e.sh all

e2e-smoke:
	@hack/kind/e2e.sh smoke

e2e-down:
	@hack/kind/e2e.sh down

# Everything, and longer: churn, fuzzing, all mutants.
soak:
	@hack/soak.sh

bench: build
	@hack/bench.sh

bench-kind:
	@hack/kind/e2e.sh bench

lint:
	@hack/lint.sh

verify:
	@hack/verify.sh

mutants:
	@hack/mutants.sh

clean:
	rm -rf bin _artifacts
