package comm_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/collective"
)

// A verb is a function that takes a communicator, or a method of Comm that does more than return
// state. A non-blocking form needs no separate Example, because it is used like the blocking form.
func TestEveryVerbHasAnExample(t *testing.T) {
	verbs, examples := declared(t)
	if len(verbs) < 30 {
		t.Errorf("found %d verbs, and there are more", len(verbs))
	}
	for verb := range verbs {
		receiver, name, method := strings.Cut(verb, "_")
		if !method {
			receiver, name = "", verb
		} else {
			receiver += "_"
		}
		blocking, starts := strings.CutPrefix(name, "I")
		if !examples[verb] && !(starts && verbs[receiver+blocking]) {
			t.Errorf("%s has no Example", verb)
		}
	}
}

func TestEveryCollectiveHasANonBlockingForm(t *testing.T) {
	all, _ := declared(t)
	verbs := map[string]bool{}
	for verb := range all {
		verbs[strings.TrimPrefix(verb, "Comm_")] = true
	}
	forms := 0
	for _, v := range collective.Verbs() {
		name := strings.NewReplacer("all", "All", "reduce", "Reduce", "gather", "Gather", "scatter", "Scatter", "scan", "Scan", "barrier", "Barrier",
			"broadcast", "Broadcast", "to", "To", "ex", "Ex", "_", "").Replace(v.String())
		if strings.HasSuffix(name, "v") { // the form with Counts
			continue
		}
		forms++
		if !verbs[name] || !verbs["I"+name] {
			t.Errorf("%s: is there a blocking form: %v, a non-blocking one: %v", name, verbs[name], verbs["I"+name])
		}
	}
	if forms != 11 {
		t.Errorf("found %d collectives without counts, want 11", forms)
	}
}

// declared returns the names of the functions and methods of this package that isVerb accepts, and
// the names that have an Example.
func declared(t *testing.T) (verbs, examples map[string]bool) {
	verbs, examples = map[string]bool{}, map[string]bool{}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			f, ok := d.(*ast.FuncDecl)
			switch {
			case !ok || !f.Name.IsExported():
			case strings.HasSuffix(file.Name(), "_test.go"):
				if name, ok := strings.CutPrefix(f.Name.Name, "Example"); ok {
					examples[name] = true
				}
			case isVerb(f):
				verbs[name(f)] = true
			}
		}
	}
	return verbs, examples
}

// name returns the part of the name of f's Example that follows "Example".
func name(f *ast.FuncDecl) string {
	if f.Recv != nil {
		return "Comm_" + f.Name.Name
	}
	return f.Name.Name
}

// isVerb reports whether f takes a *Comm, or is a method of *Comm that does more than return state.
func isVerb(f *ast.FuncDecl) bool {
	switch {
	case f.Name.Name == "Init" || f.Name.Name == "Local":
		return true
	case f.Recv != nil:
		queries := map[string]bool{"Rank": true, "Size": true, "WorldRank": true, "Layout": true, "Transport": true, "Bridge": true}
		return isComm(f.Recv.List[0].Type) && !queries[f.Name.Name]
	}
	for _, p := range f.Type.Params.List {
		if isComm(p.Type) {
			return true
		}
	}
	return false
}

func isComm(e ast.Expr) bool {
	star, ok := e.(*ast.StarExpr)
	if !ok {
		return false
	}
	id, ok := star.X.(*ast.Ident)
	return ok && id.Name == "Comm"
}
