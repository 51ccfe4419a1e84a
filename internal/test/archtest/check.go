// Package archtest checks this module's source against the import policy in policy.txt. It also
// checks three rules that an import list does not show: there are no init functions, there are no
// imports for their side effects, and only programs end the process. It does not know what any
// package is for.
package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// module is this module's path.
const module = "github.com/tutti-go/tutti"

// check returns one line per violation in the Go files of fsys, the module's root. It reads every
// file, whatever its build constraints, because an import in a file for Windows must follow the
// policy, too.
func check(fsys fs.FS, rules []rule) ([]string, error) {
	var violations []string
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skip(name)
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		found, err := checkFile(fsys, name, rules)
		violations = append(violations, found...)
		return err
	})
	return violations, err
}

// skip reports whether a folder is skipped. The go command ignores the same folders.
func skip(name string) error {
	base := path.Base(name)
	hidden := name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_"))
	if hidden || base == "testdata" || base == "vendor" {
		return fs.SkipDir
	}
	return nil
}

// checkFile checks one file against the rule of its package.
func checkFile(fsys fs.FS, name string, rules []rule) ([]string, error) {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}, nil
	}
	pkg := path.Dir(name)
	r, ok := find(rules, pkg)
	if !ok {
		return []string{fmt.Sprintf("%s: no line of the policy names package %s", name, pkg)}, nil
	}
	var violations []string
	complain := func(at token.Pos, format string, args ...any) {
		violations = append(violations, fmt.Sprintf("%v: %s", files.Position(at), fmt.Sprintf(format, args...)))
	}
	test := strings.HasSuffix(name, "_test.go")
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if why := r.refuses(imported, path.Base(name), test); why != "" {
			complain(spec.Pos(), "%s imports %s: %s", pkg, imported, why)
		}
		if spec.Name != nil && spec.Name.Name == "_" && imported != "embed" {
			complain(spec.Pos(), "%s imports %s for its side effects", pkg, imported)
		}
	}
	if !test {
		checkHabits(file, pkg, complain)
	}
	return violations, nil
}

// refuses returns the reason why the rule forbids an import, or "" if the rule allows it. The
// argument imported is the path of the imported package. The argument file is the base name of the
// importing file, because the rule may allow an import in some files only. The argument test says
// whether that file is a test.
func (r rule) refuses(imported, file string, test bool) string {
	local, ours := cutModule(imported)
	allowed, files := r.allows(local, file)
	switch {
	case allowed || ours && test:
		return ""
	case files != nil:
		return "the policy allows this only in " + strings.Join(files, " and ")
	case ours:
		return "the policy has no such arrow"
	}
	first, _, _ := strings.Cut(imported, "/")
	switch {
	case strings.Contains(first, "."):
		if test && matchAny([]string{"gonum.org/v1/gonum/..."}, imported) {
			return ""
		}
		return "the policy does not allow this third party here"
	case slices.Contains(guarded[:], imported):
		if test && imported == "unsafe" {
			return ""
		}
		return "the policy must name this package"
	case !test && slices.Contains(r.refused, imported):
		return "the policy forbids this package here"
	}
	return ""
}

// cutModule returns the path of a package of this module relative to the module, and true. For any
// other package it returns the whole path, and false.
func cutModule(imported string) (string, bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

// checkHabits looks for init functions, and for calls that end the process in
// packages that are not programs.
func checkHabits(file *ast.File, pkg string, complain func(at token.Pos, format string, args ...any)) {
	program := file.Name.Name == "main"
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				complain(n.Pos(), "%s has an init function; a transport, like all else, is a value", pkg)
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "os" && n.Sel.Name == "Exit" && !program {
				complain(n.Pos(), "%s calls os.Exit; only programs may", pkg)
			}
		}
		return true
	})
}
