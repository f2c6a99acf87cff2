package main

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// finding is one place; an empty reason is an error.
type finding struct {
	line         int
	what, reason string
}

// Marks of work put off, at the start of a comment, and of linters silenced in shell scripts.
var (
	putOff     = regexp.MustCompile(`^(TODO|FIXME|XXX)\b(?:\([^)]*\))?:?\s*(.*)$`)
	shellcheck = regexp.MustCompile(`^(shellcheck disable=\S+)\s*(?:#\s*)?(.*)$`)
	hash       = regexp.MustCompile(`(?:^|\s)#\s?(.*)$`)
)

// scan reads one file of the repository: Go by its syntax, scripts and YAML by their comments, others not at all.
func scan(file string) ([]finding, error) {
	src, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // deleted, not committed yet
	}
	if err != nil {
		return nil, err
	}
	switch {
	case filepath.Ext(file) == ".go":
		return scanGo(file, src)
	case slices.Contains([]string{".sh", ".yml", ".yaml"}, filepath.Ext(file)), filepath.Base(file) == "Makefile", bytes.HasPrefix(src, []byte("#!")):
		return scanHash(src), nil
	}
	return nil, nil
}

func scanHash(src []byte) []finding {
	var found []finding
	line := 0
	for text := range strings.Lines(string(src)) {
		line++
		m := hash.FindStringSubmatch(strings.TrimRight(text, "\n"))
		if m == nil {
			continue
		}
		for _, re := range []*regexp.Regexp{putOff, shellcheck} {
			if f := re.FindStringSubmatch(m[1]); f != nil {
				found = append(found, finding{line, f[1], f[2]})
			}
		}
	}
	return found
}

// goFile is one parsed file and its comments by the line they end on.
type goFile struct {
	fset     *token.FileSet
	comments map[int]string
	found    []finding
}

func scanGo(file string, src []byte) ([]finding, error) {
	g := &goFile{fset: token.NewFileSet(), comments: map[int]string{}}
	f, err := parser.ParseFile(g.fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, group := range f.Comments {
		for _, c := range group.List {
			g.comment(c)
		}
	}
	if usesTesting(f) {
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				g.call(call)
			}
			return true
		})
	}
	slices.SortStableFunc(g.found, func(a, b finding) int { return a.line - b.line })
	return g.found, nil
}

// usesTesting keeps methods named Skip of other things (decoders, say) out.
func usesTesting(f *ast.File) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` })
}

// comment notes a comment as a possible reason, and looks for marks in each of its lines.
func (g *goFile) comment(c *ast.Comment) {
	line := g.line(c.Pos())
	g.comments[g.line(c.End())] = strings.TrimSpace(strings.TrimPrefix(c.Text, "//"))
	if rest, ok := strings.CutPrefix(c.Text, "//nolint"); ok {
		names, reason, _ := strings.Cut(rest, "//")
		g.found = append(g.found, finding{line, "nolint" + strings.TrimSpace(names), strings.TrimSpace(reason)})
		return
	}
	for text := range strings.Lines(c.Text) {
		if m := putOff.FindStringSubmatch(strings.Trim(text, "/* \t\n")); m != nil {
			g.found = append(g.found, finding{line, m[1], m[2]})
		}
		line++
	}
}

// call finds t.Skip, t.Skipf, t.SkipNow and testing.Short.
func (g *goFile) call(call *ast.CallExpr) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	line := g.line(call.Pos())
	switch name := sel.Sel.Name; name {
	case "Skip", "Skipf", "SkipNow":
		reason := literal(call.Args)
		if reason == "" {
			reason = g.beside(line)
		}
		g.found = append(g.found, finding{line, name, reason})
	case "Short":
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "testing" {
			g.found = append(g.found, finding{line, "testing.Short", g.beside(line)})
		}
	}
}

// beside is the comment on a line or, if there is none, on the line above.
func (g *goFile) beside(line int) string {
	if c := g.comments[line]; c != "" {
		return c
	}
	return g.comments[line-1]
}

func (g *goFile) line(p token.Pos) int { return g.fset.Position(p).Line }

// literal is the first string constant among the arguments.
func literal(args []ast.Expr) string {
	for _, a := range args {
		found := ""
		ast.Inspect(a, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && found == "" {
				found, _ = strconv.Unquote(lit.Value)
			}
			return true
		})
		if found != "" {
			return found
		}
	}
	return ""
}
