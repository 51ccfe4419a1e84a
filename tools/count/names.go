package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// names holds the numbers of exported names of a package.
type names struct{ identifiers, methods int }

// exportedNames counts the exported names of the package in a folder below root. A name that
// several files declare, for different platforms, counts once.
func exportedNames(root, folder string) (names, error) {
	paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(folder), "*.go"))
	if err != nil {
		return names{}, err
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return names{}, err
		}
		files = append(files, f)
	}
	return countNames(files), nil
}

func countNames(files []*ast.File) names {
	identifiers, methods := make(map[string]bool), make(map[string]bool)
	for _, f := range files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, name := range declared(d) {
					identifiers[name] = true
				}
			case *ast.FuncDecl:
				if receiver := receiverOf(d); receiver != "" {
					methods[receiver+"."+d.Name.Name] = true
				} else {
					identifiers[d.Name.Name] = true
				}
			}
		}
	}
	return names{countExported(identifiers), countExported(methods)}
}

// countExported counts the names in the set whose parts between dots are all exported.
func countExported(set map[string]bool) (n int) {
	for name := range set {
		exported := true
		for part := range strings.SplitSeq(name, ".") {
			exported = exported && ast.IsExported(part)
		}
		if exported {
			n++
		}
	}
	return n
}

// declared returns the names that a declaration of types, constants or variables declares.
func declared(d *ast.GenDecl) (all []string) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			all = append(all, s.Name.Name)
		case *ast.ValueSpec:
			for _, name := range s.Names {
				all = append(all, name.Name)
			}
		}
	}
	return all
}

// receiverOf returns the name of a method's type, without star and type parameters. For a function
// it returns "".
func receiverOf(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return ""
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
