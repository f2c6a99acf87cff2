// Reliability holds docs/reliability.md to its word: each row of its tables names the tests that show it.
//
//	go run ./hack/reliability [REGEXP]
//
// runs these tests, or those of the rows that match, by their names, and fails unless each of them has passed: one that was skipped or
// that no longer runs is a row without proof. Its own test, which is part of make test, only reads: every name is a test of the tree that
// make test runs, and none of them calls Skip.
package main
