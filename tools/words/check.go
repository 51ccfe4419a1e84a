package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode"
)

// check reads every Go and Markdown file below root and returns a line per finding, sorted.
func check(root fs.FS, t *wordTable) ([]string, error) {
	c := &checker{table: t, exported: map[string]map[string]string{}}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipped(name) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".md") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".md") {
			c.markdown(name, string(text))
			return nil
		}
		return c.source(name, text)
	})
	if err != nil {
		return nil, err
	}
	c.types()
	slices.Sort(c.found)
	return slices.Compact(c.found), nil
}

// skipped reports whether the check skips a folder. It skips folders with foreign files, and the
// folder of the word table.
func skipped(dir string) bool {
	base := path.Base(dir)
	return dir == "tools/words" || dir == "bin" || dir == "out" || (len(base) > 1 && base[0] == '.')
}

// A checker collects findings and the exported types of all packages.
type checker struct {
	table    *wordTable
	found    []string
	exported map[string]map[string]string // type name -> package folder -> position
}

func (c *checker) report(where, what string, r rule) {
	c.found = append(c.found, fmt.Sprintf("%s: %s: write %s (words.txt:%d)", where, what, r.use, r.line))
}

// source checks the file's name, its declared identifiers and its comments.
func (c *checker) source(name string, text []byte) error {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := path.Dir(name)
	c.identifier(name, dir, strings.TrimSuffix(path.Base(name), ".go"))
	for _, id := range declared(f) {
		c.identifier(fset.Position(id.Pos()).String(), dir, id.Name)
	}
	for _, group := range f.Comments {
		for _, comment := range group.List {
			if strings.HasPrefix(comment.Text, "//go:") {
				continue
			}
			c.prose(fset.Position(comment.Pos()), dir, comment.Text)
		}
	}
	if !strings.HasSuffix(name, "_test.go") && f.Name.Name != "main" {
		c.exports(fset, f, dir)
	}
	return nil
}

// identifier checks one name by its parts.
func (c *checker) identifier(where, dir, name string) {
	split := parts(name)
	for _, r := range c.table.rules {
		if r.in.holds(dir) && !r.allows(name, split) && has(split, r.words) {
			c.report(where, fmt.Sprintf("%s has %q", name, strings.Join(r.words, " ")), r)
		}
	}
}

func (c *checker) markdown(name, text string) {
	for i, line := range strings.Split(text, "\n") {
		c.prose(token.Position{Filename: name, Line: i + 1, Column: 1}, path.Dir(name), line)
	}
}

// prose checks running text, line by line, so that a finding names its line.
func (c *checker) prose(at token.Position, dir, text string) {
	for i, line := range strings.Split(text, "\n") {
		var words []string
		for _, w := range strings.FieldsFunc(line, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
			words = append(words, parts(w)...)
		}
		for _, r := range c.table.rules {
			if r.text && r.in.holds(dir) && has(words, r.words) {
				where := token.Position{Filename: at.Filename, Line: at.Line + i, Column: 1}
				c.report(where.String(), fmt.Sprintf("the text has %q", strings.Join(r.words, " ")), r)
			}
		}
	}
}

// exports records the types that a package exports. It ignores aliases, because an alias has the
// meaning of its type.
func (c *checker) exports(fset *token.FileSet, f *ast.File, dir string) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			ts := s.(*ast.TypeSpec)
			if !ts.Name.IsExported() || ts.Assign.IsValid() {
				continue
			}
			if c.exported[ts.Name.Name] == nil {
				c.exported[ts.Name.Name] = map[string]string{}
			}
			c.exported[ts.Name.Name][dir] = fset.Position(ts.Pos()).String()
		}
	}
}

// types reports the type names that several packages export and the table does not list.
func (c *checker) types() {
	for name, dirs := range c.exported {
		if len(dirs) < 2 || c.table.shared[name] != "" {
			continue
		}
		var where []string
		for _, at := range dirs {
			where = append(where, at)
		}
		slices.Sort(where)
		c.found = append(c.found, fmt.Sprintf("%s: type %s is exported by other packages, too (%s): rename one, or list it in words.txt with its one meaning",
			where[0], name, strings.Join(where[1:], ", ")))
	}
}

// declared returns the identifiers that f declares, and not those that f only uses.
func declared(f *ast.File) []*ast.Ident {
	var ids []*ast.Ident
	fields := func(l *ast.FieldList) {
		if l == nil {
			return
		}
		for _, field := range l.List {
			ids = append(ids, field.Names...)
		}
	}
	idents := func(list []ast.Expr) {
		for _, e := range list {
			if id, ok := e.(*ast.Ident); ok {
				ids = append(ids, id)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			ids = append(ids, n.Name)
			fields(n.Recv)
		case *ast.FuncType:
			fields(n.TypeParams)
			fields(n.Params)
			fields(n.Results)
		case *ast.StructType:
			fields(n.Fields)
		case *ast.InterfaceType:
			fields(n.Methods)
		case *ast.TypeSpec:
			ids = append(ids, n.Name)
			fields(n.TypeParams)
		case *ast.ValueSpec:
			ids = append(ids, n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				idents(n.Lhs)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				idents([]ast.Expr{n.Key, n.Value})
			}
		case *ast.LabeledStmt:
			ids = append(ids, n.Label)
		case *ast.ImportSpec:
			if n.Name != nil {
				ids = append(ids, n.Name)
			}
		}
		return true
	})
	return ids
}

// parts splits an identifier into lower-case words. It splits at underscores, at digits, before an
// upper-case letter that follows a lower-case letter, and before the last of several upper-case
// letters.
func parts(name string) []string {
	var out []string
	var part []rune
	flush := func() {
		if len(part) > 0 {
			out = append(out, strings.ToLower(string(part)))
			part = nil
		}
	}
	rs := []rune(name)
	for i, r := range rs {
		if !unicode.IsLetter(r) {
			flush()
			continue
		}
		if unicode.IsUpper(r) && len(part) > 0 {
			next := i+1 < len(rs) && unicode.IsLower(rs[i+1])
			if !unicode.IsUpper(rs[i-1]) || next {
				flush()
			}
		}
		part = append(part, r)
	}
	flush()
	return out
}

// allows reports whether an exception of the rule covers the identifier. An exception is a whole
// name or a phrase.
func (r rule) allows(name string, split []string) bool {
	return slices.ContainsFunc(r.but, func(b string) bool {
		return b == name || strings.Contains(b, " ") && has(split, strings.Fields(b))
	})
}

// has reports whether split contains the given words, or inflected forms of them, one after the
// other.
func has(split, words []string) bool {
	for i := 0; i+len(words) <= len(split); i++ {
		all := true
		for j, w := range words {
			if !form(split[i+j], w) {
				all = false
				break
			}
		}
		if all {
			return true
		}
	}
	return false
}

// form reports whether got is word or a regular inflection of it.
func form(got, word string) bool {
	rest, ok := strings.CutPrefix(got, word)
	if ok {
		switch rest {
		case "", "s", "es", "d", "ed", "er", "ers", "ing", "ings":
			return true
		}
	}
	stem, ok := strings.CutSuffix(word, "e")
	return ok && (got == stem+"ing" || got == stem+"ings")
}
