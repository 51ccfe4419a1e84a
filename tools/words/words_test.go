package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

const testTable = `
# a comment
text * | vouch, so many | suspect and refute
name *,-launch | place | destination | Place, in place
name comm | twin | two words
type Option | an option of the package's constructor
`

func findings(t *testing.T, files map[string]string) []string {
	t.Helper()
	table, err := parseTable(testTable)
	if err != nil {
		t.Fatal(err)
	}
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	found, err := check(root, table)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestAPlantedWordIsFound(t *testing.T) {
	for _, tt := range []struct{ name, file, text, want string }{
		{"function", "comm/a.go", "package comm\nfunc bufferPlace() {}", `bufferPlace has "place"`},
		{"inflected", "comm/a.go", "package comm\nvar placed int", `placed has "place"`},
		{"local of a test", "comm/a_test.go", "package comm\nfunc f() { place := 1; _ = place }", `place has "place"`},
		{"parameter", "comm/a.go", "package comm\nfunc f(twin int) {}", `twin has "twin"`},
		{"range variable", "comm/a.go", "package comm\nfunc f() { for place := range 3 { _ = place } }", `place has "place"`},
		{"field", "comm/a.go", "package comm\ntype t struct { Places int }", `Places has "place"`},
		{"method of an interface", "comm/a.go", "package comm\ntype t interface { Vouch() }", `Vouch has "vouch"`},
		{"file", "comm/twin_linux.go", "package comm", `twin_linux has "twin"`},
		{"comment", "comm/a.go", "package comm\n// It is vouched for.\nvar x int", `comm/a.go:2:1: the text has "vouch"`},
		{"phrase", "comm/a.go", "package comm\n/* one\nof so many */\nvar x int", `comm/a.go:3:1: the text has "so many"`},
		{"Markdown", "docs/a.md", "one\nwho vouches", `docs/a.md:2:1: the text has "vouch"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found := findings(t, map[string]string{tt.file: tt.text})
			if len(found) != 1 || !strings.Contains(found[0], tt.want) {
				t.Errorf("got %q, want one line with %q", found, tt.want)
			}
		})
	}
}

func TestLegalNamesAreNotFound(t *testing.T) {
	found := findings(t, map[string]string{
		"comm/a.go":        "package comm\nfunc placeholder() {}\nfunc inPlaceSum() {}\nvar Place int\nfunc replace() {}\n// in place\nvar x = other.Place",
		"launch/a.go":      "package launch\nvar place int",
		"launch/x/a.go":    "package x\nvar place int",
		"mesh/a.go":        "package mesh\nvar twin int",
		"tools/words/a.md": "vouch",
	})
	if len(found) != 0 {
		t.Errorf("got %q, want none", found)
	}
}

func TestAnExportedTypeNameHasOneMeaning(t *testing.T) {
	files := map[string]string{
		"comm/a.go":      "package comm\ntype Option func()\ntype Step int",
		"mesh/a.go":      "package mesh\ntype Option func()\ntype step int",
		"mesh/a_test.go": "package mesh\ntype Step int",
		"p2p/a.go":       "package p2p\ntype Step = int",
	}
	if found := findings(t, files); len(found) != 0 {
		t.Errorf("got %q, want none", found)
	}
	files["tensor/a.go"] = "package tensor\ntype Step string"
	if found := findings(t, files); len(found) != 1 || !strings.Contains(found[0], "type Step is exported by other packages") {
		t.Errorf("got %q, want one line about Step", found)
	}
}

func TestPartsOfIdentifiers(t *testing.T) {
	for name, want := range map[string]string{
		"markDead": "mark dead", "HTTPServer": "http server", "a_b": "a b", "x2y": "x y",
		"AllReduceTo": "all reduce to", "ID": "id", "": "",
	} {
		if got := strings.Join(parts(name), " "); got != want {
			t.Errorf("parts(%q): got %q, want %q", name, got, want)
		}
	}
}

func TestABadTableIsRefused(t *testing.T) {
	for _, line := range []string{"word * | a | b", "name * | a", "name * | | b", "type T"} {
		if _, err := parseTable(line); err == nil || !strings.Contains(err.Error(), "words.txt:1: got") {
			t.Errorf("%q: got %v, want an error with the line", line, err)
		}
	}
}
