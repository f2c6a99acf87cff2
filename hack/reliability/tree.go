package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// failpoints is the tag of the tests that make test runs in a second go test, by this word of their names (hack/test.sh).
const (
	failpoints     = "failpoint"
	failpointsWord = "ailpoint"
)

// test is a test function of the tree.
type test struct {
	pkg     string          // import path
	tag     string          // failpoints, or none
	file    string          // where it is
	skips   bool            // its own code calls Skip
	strings map[string]bool // string constants of its file: the names of subtests are among them
}

// tests are those that make test runs in the module in dir; files behind other tags aren't among them. Names are unique but for those in
// twice.
func tests(dir string) (found map[string]test, twice map[string]bool, err error) {
	found, twice = map[string]test{}, map[string]bool{}
	files := map[string]bool{}
	for _, tag := range []string{"", failpoints} {
		list, err := testFiles(dir, tag)
		if err != nil {
			return nil, nil, err
		}
		for file, pkg := range list {
			if files[file] {
				continue
			}
			files[file] = true
			list, err := testsOf(file)
			if err != nil {
				return nil, nil, err
			}
			for name, t := range list {
				if tag == failpoints && !strings.Contains(name, failpointsWord) {
					continue
				}
				_, known := found[name]
				twice[name] = twice[name] || known
				t.pkg, t.tag = pkg, tag
				found[name] = t
			}
		}
	}
	return found, twice, nil
}

// testFiles are the files with tests, each with its package.
func testFiles(dir, tag string) (map[string]string, error) {
	cmd := exec.Command("go", "list", "-tags", tag, "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	files := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return files, nil
		} else if err != nil {
			return nil, err
		}
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			files[filepath.Join(p.Dir, name)] = p.ImportPath
		}
	}
}

// testsOf reads one file.
func testsOf(file string) (map[string]test, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return nil, err
	}
	constants := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				constants[s] = true
			}
		}
		return true
	})
	list := map[string]test{}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && fn.Recv == nil && (strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) {
			list[fn.Name.Name] = test{file: file, skips: skips(fn), strings: constants}
		}
	}
	return list, nil
}

// skips tells whether a test may let itself out.
func skips(fn *ast.FuncDecl) (found bool) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			switch sel.Sel.Name {
			case "Skip", "Skipf", "SkipNow":
				found = true
			}
		}
		return true
	})
	return found
}

// proves tells what is wrong with a name that a row gives as its proof: "TestX", or "TestX/subtest" where the subtest's name stands in
// the test's file.
func proves(name string, all map[string]test, twice map[string]bool) error {
	top, sub, _ := strings.Cut(name, "/")
	t, ok := all[top]
	switch {
	case !ok:
		return fmt.Errorf("%s: make test runs no such test", top)
	case twice[top]:
		return fmt.Errorf("%s: two packages have one", top)
	case t.skips:
		return fmt.Errorf("%s: may skip itself (%s)", top, t.file)
	}
	for part := range strings.SplitSeq(sub, "/") {
		if part != "" && !t.strings[part] {
			return fmt.Errorf("%s: %s has no %q", name, t.file, part)
		}
	}
	return nil
}

// check is proves for all of them.
func check(list []row, all map[string]test, twice map[string]bool) error {
	var errs []error
	for _, r := range list {
		for _, name := range r.tests {
			if err := proves(name, all, twice); err != nil {
				errs = append(errs, fmt.Errorf("line %d: %w", r.line, err))
			}
		}
	}
	return errors.Join(errs...)
}
