package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// leastCount is the number of occurrences below which a word is left out of the vocabulary.
const leastCount = 5

// A corpus is a text in which each word is a number.
type corpus struct {
	words    []string       // the vocabulary, the most frequent words first
	number   map[string]int // the index in words of each word
	counts   []int          // how often each word occurs
	total    int            // sum of counts
	comments [][]int32      // the words of each comment
}

// newCorpus returns the corpus of a text with one comment per line.
func newCorpus(text []byte) *corpus {
	occurrences := map[string]int{}
	for word := range bytes.FieldsSeq(text) {
		occurrences[string(word)]++
	}
	maps.DeleteFunc(occurrences, func(_ string, n int) bool { return n < leastCount })
	c := &corpus{number: map[string]int{}}
	c.words = slices.SortedFunc(maps.Keys(occurrences), func(a, b string) int {
		return cmp.Or(occurrences[b]-occurrences[a], strings.Compare(a, b))
	})
	for i, word := range c.words {
		c.number[word] = i
		c.counts = append(c.counts, occurrences[word])
		c.total += occurrences[word]
	}
	for line := range bytes.Lines(text) {
		var comment []int32
		for word := range bytes.FieldsSeq(line) {
			if i, ok := c.number[string(word)]; ok {
				comment = append(comment, int32(i))
			}
		}
		if len(comment) > 1 {
			c.comments = append(c.comments, comment)
		}
	}
	return c
}

// frequent returns how many words of the vocabulary, from the first, occur at least n times.
func (c *corpus) frequent(n int) int {
	i, _ := slices.BinarySearchFunc(c.counts, n, func(count, n int) int { return cmp.Compare(n-1, count) })
	return i
}

// goSource returns the folder of the standard library's source.
func goSource(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w: install Go, or name a folder of Go source with -src", err)
	}
	return filepath.Join(strings.TrimSpace(string(root)), "src"), nil
}

// readComments returns the words of the doc comments below the folder root, one line per comment.
// It reads the given one of several equal shares of the files. Tests and their data are left out.
func readComments(root string, share, shares int) ([]byte, error) {
	var text bytes.Buffer
	n := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "testdata":
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		n++
		if n%shares != share {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if doc := docOf(node); doc != nil {
				writeWords(&text, doc.Text())
			}
			_, body := node.(*ast.BlockStmt)
			return !body
		})
		return nil
	})
	if err == nil && n == 0 {
		err = fmt.Errorf("folder %s: got no Go files, want the source of the standard library", root)
	}
	return text.Bytes(), err
}

// docOf returns the doc comment of a declaration, or nil.
func docOf(node ast.Node) *ast.CommentGroup {
	switch node := node.(type) {
	case *ast.File:
		return node.Doc
	case *ast.GenDecl:
		return node.Doc
	case *ast.FuncDecl:
		return node.Doc
	case *ast.TypeSpec:
		return node.Doc
	case *ast.ValueSpec:
		return node.Doc
	case *ast.Field:
		return node.Doc
	}
	return nil
}

// writeWords writes the words of a comment in lower case, as one line. A word begins with an ASCII
// letter, and has a second letter or digit.
func writeWords(text *bytes.Buffer, comment string) {
	separates := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	for word := range strings.FieldsFuncSeq(strings.ToLower(comment), separates) {
		if len(word) > 1 && 'a' <= word[0] && word[0] <= 'z' {
			text.WriteString(word)
			text.WriteByte(' ')
		}
	}
	text.WriteByte('\n')
}
