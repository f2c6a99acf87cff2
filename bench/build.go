package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
)

// Packages of the peers; go.mod lists them as tools, so it pins their versions.
var peerPackages = []string{
	"github.com/containernetworking/plugins/plugins/main/ptp",
	"github.com/containernetworking/plugins/plugins/ipam/host-local",
}

// emptyProgram is what the start of a Go process costs.
const emptyProgram = "package main\n\nfunc main() {}\n"

// binaries are the programs that are measured.
type binaries struct {
	root  string // of the repository
	ours  string // folder of the shipped build
	peers string // folder of ptp and host-local
	empty string
	// against has an earlier build of ours that takes the peers' place; empty: none does.
	against string
	self    string
}

// build makes everything that is measured, with the flags of the shipped build.
func build(ctx context.Context) (b binaries, err error) {
	if b.root, err = filepath.Abs(".."); err != nil {
		return b, err
	}
	b.ours = filepath.Join(b.root, "bin")
	if err := command(ctx, b.root, "hack/build.sh", "ship", "bin"); err != nil {
		return b, err
	}
	b.peers, err = peerDir()
	if err != nil {
		return b, err
	}
	b.empty = filepath.Join(b.peers, "empty")
	if _, err := os.Stat(b.empty); err == nil { // the last one that is made: all are there
		return b, nil
	}
	fmt.Fprintln(os.Stderr, "building the peers (once)")
	flags := []string{"build", "-trimpath", "-ldflags", "-s -w", "-o", b.peers + "/"}
	if err := command(ctx, ".", "go", slices.Concat(flags, peerPackages)...); err != nil {
		return b, err
	}
	source := filepath.Join(b.peers, "empty.go")
	if err := os.WriteFile(source, []byte(emptyProgram), 0o600); err != nil {
		return b, err
	}
	return b, command(ctx, ".", "go", append(flags, source)...)
}

// install copies all programs of a folder, as people and runtimes' installers do. What a linker has just written stands in memory page by
// page, a copy in larger pieces, and a process starts half a millisecond faster from those: both sides get the same.
func install(from, to string) error {
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		if !file.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(from, file.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, file.Name()), text, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// peerDir is a folder of the user's cache that is named after everything that decides what is built.
func peerDir() (string, error) {
	h := sha256.New()
	fmt.Fprint(h, runtime.Version(), runtime.GOARCH, emptyProgram)
	for _, file := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("%w (run it as: go run -C bench .)", err)
		}
		_, _ = h.Write(text) // never fails (hash.Hash)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "native-vmss", "peers-"+hex.EncodeToString(h.Sum(nil)[:8]))
	return dir, os.MkdirAll(dir, 0o755)
}

// command runs a program to its end; what it says is shown.
func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
