package comm_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// exported returns the exported names of the package in dir. A method has the form "Type.Method".
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			addNames(names, d)
		}
	}
	return names
}

func addNames(names map[string]bool, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			names[d.Name.Name] = true
			return
		}
		t := d.Recv.List[0].Type
		if star, ok := t.(*ast.StarExpr); ok {
			t = star.X
		}
		if index, ok := t.(*ast.IndexExpr); ok {
			t = index.X
		}
		names[t.(*ast.Ident).Name+"."+d.Name.Name] = true
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names[spec.Name.Name] = true
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					names[id.Name] = true
				}
			}
		}
	}
}

// Every name in the second and third columns of the tables of docs/migration.md must exist in this
// module.
func TestMigrationTablesNameExistingCalls(t *testing.T) {
	text, err := os.ReadFile("../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]map[string]bool{
		"comm": exported(t, "."), "coordinator": exported(t, "../coordinator"), "reduce": exported(t, "../reduce"), "tensor": exported(t, "../tensor"),
		"elastic": exported(t, "../elastic"),
	}
	methods := map[string]string{"Comm": "comm", "Request": "comm", "Coordinator": "coordinator", "Handle": "coordinator", "Job": "elastic"}
	named := regexp.MustCompile("`([A-Za-z]+)\\.([A-Za-z]+)`")
	found := 0
	for line := range strings.Lines(string(text)) {
		_, ours, row := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		if !row {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(ours, -1) {
			found++
			receiver, name := m[1], m[2]
			pkg, full := receiver, name
			if p, ok := methods[receiver]; ok {
				pkg, full = p, receiver+"."+name
			}
			if !packages[pkg][full] {
				t.Errorf("docs/migration.md names %s, which does not exist", m[0])
			}
		}
	}
	if found < 80 {
		t.Errorf("found %d names in the tables, and there are more", found)
	}
}
