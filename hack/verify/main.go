// Verify prints every place where the repository lets something pass (skipped and shortened tests, silenced linters, work put
// off) with the reason beside it, and fails where there is none.
//
//	go run ./hack/verify
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	if err := verify(); err != nil {
		fmt.Fprintln(os.Stderr, "verify:", err)
		os.Exit(1)
	}
}

func verify() error {
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	found, bare := 0, 0
	for file := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		findings, err := scan(file)
		if err != nil {
			return err
		}
		for _, f := range findings {
			found++
			if f.reason == "" {
				bare++
				f.reason = "NO REASON GIVEN"
			}
			fmt.Printf("%s:%d: %s: %s\n", file, f.line, f.what, f.reason)
		}
	}
	fmt.Printf("verify: %d skips, silenced linters and things put off, %d without a reason\n", found, bare)
	if bare > 0 {
		return fmt.Errorf("%d without a reason", bare)
	}
	return nil
}
