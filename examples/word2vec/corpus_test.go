package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReadCommentsReadsDocCommentsOnly(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"a/a.go": `// Package a is X509's friend.
package a

// F folds, twice.
//
//go:noinline
func F() {
	// A body has no doc.
	var x int // inside
	_ = x
}

// S is a struct.
type S struct {
	// Name is a field.
	Name string // trailing
}

// C is constant.
const C = 1
`,
		"a/a_test.go":         "// Package a is tested.\npackage a\n",
		"a/testdata/c/c.go":   "// Package c is data.\npackage c\n",
		"b/b.go":              "// Package b is ünique 2nd.\npackage b\n",
		"b/doc.txt":           "// Package d is text.\n",
		"z/testdata.go":       "// Package z is last.\npackage z\n",
		"z/nothing/to/see.md": "",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"constant is", "field is name", "folds twice", "friend is package x509", "is last package", "is package", "is struct"}
	for shares := 1; shares <= 4; shares++ {
		var got []string
		for share := range shares {
			text, err := readComments(root, share, shares)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				words := strings.Fields(line)
				slices.Sort(words)
				got = append(got, strings.Join(words, " "))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%d shares: got %q, want %q", shares, got, want)
		}
	}
}

func TestReadCommentsNamesAFolderWithoutSource(t *testing.T) {
	empty := t.TempDir()
	if _, err := readComments(empty, 0, 1); err == nil || !strings.Contains(err.Error(), empty) {
		t.Errorf("got %v, want an error that names %s", err, empty)
	}
	if _, err := readComments(filepath.Join(empty, "missing"), 0, 1); err == nil {
		t.Error("a missing folder: got no error")
	}
}

func TestNewCorpusKeepsFrequentWords(t *testing.T) {
	c := newCorpus([]byte(strings.Repeat("bb aa cc\n", 4) + "aa rare bb\nbb\nalone\ncc aa bb bb\n"))
	if want := []string{"bb", "aa", "cc"}; !slices.Equal(c.words, want) {
		t.Fatalf("words: got %q, want %q", c.words, want)
	}
	if want := []int{8, 6, 5}; !slices.Equal(c.counts, want) || c.total != 19 {
		t.Errorf("counts: got %d with the sum %d, want %d with the sum 19", c.counts, c.total, want)
	}
	if last := c.comments[len(c.comments)-1]; len(c.comments) != 6 || !slices.Equal(last, []int32{2, 1, 0, 0}) {
		t.Errorf("comments: got %d, the last one %d, want 6, the last one [2 1 0 0]", len(c.comments), last)
	}
	for n, want := range map[int]int{5: 3, 6: 2, 7: 1, 8: 1, 9: 0} {
		if got := c.frequent(n); got != want {
			t.Errorf("words that occur at least %d times: got %d, want %d", n, got, want)
		}
	}
}
