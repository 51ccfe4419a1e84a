package collective

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A header is the comment above an algorithm's function.
type header struct {
	text    string // the whole comment without the drawing, on one line
	drawing string // the drawing
	ranks   int    // number of ranks in the drawing
	hosts   int
	cuts    int // number of segments of a vector; 0: not given
	root    int
}

var (
	numbers   = []string{"no", "one", "two", "three", "four", "five", "six"}
	condition = regexp.MustCompile(`(?:W|w)ith (\w+) ranks(?: on (\w+) hosts| and (\w+) segments)?(?:, (?:to|from) root (\d))?(?:, and in brackets[^:]*)?:`)
)

// source returns the file of an algorithm. A v-variant shares the file of the verb without v.
func source(a Algorithm) string {
	verb := strings.TrimSuffix(a.Verb().String(), "v")
	return strings.ReplaceAll(verb, "_", "") + "_" + a.Name() + ".go"
}

func readHeader(t testing.TB, a Algorithm) header {
	t.Helper()
	return parseHeader(t, comment(t, a))
}

// headerText returns the algorithm's comment on one line.
func headerText(t testing.TB, a Algorithm) string {
	t.Helper()
	return strings.Join(strings.Fields(comment(t, a)), " ")
}

// comment returns the comment of the first function in the algorithm's file.
func comment(t testing.TB, a Algorithm) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), source(a), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			return f.Doc.Text()
		}
	}
	t.Fatalf("%s has no function", source(a))
	return ""
}

func parseHeader(t testing.TB, doc string) header {
	t.Helper()
	var h header
	var text []string
	for line := range strings.Lines(doc) {
		if drawn, ok := strings.CutPrefix(line, "\t"); ok {
			h.drawing += drawn
			continue
		}
		text = append(text, strings.TrimSpace(line))
	}
	h.text = strings.Join(text, " ")
	found := condition.FindStringSubmatch(h.text)
	if found == nil {
		t.Fatal("the header does not say how many ranks its drawing has")
	}
	h.ranks = slices.Index(numbers, found[1])
	h.hosts = max(1, slices.Index(numbers, found[2]))
	h.cuts = max(0, slices.Index(numbers, found[3]))
	h.root, _ = strconv.Atoi(found[4])
	return h
}

func TestHeadersStateTheCostThatTheTableHas(t *testing.T) {
	for _, verb := range Verbs() {
		for _, a := range Algorithms(verb) {
			if h := headerText(t, a); !strings.Contains(h, "Cost: "+a.entry().costText) {
				t.Errorf("%s does not say %q", source(a), "Cost: "+a.entry().costText)
			}
		}
	}
}
