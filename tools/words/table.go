package main

import (
	"fmt"
	"strings"
)

// A rule forbids a word, or several words in sequence, in some packages.
type rule struct {
	words []string // the parts of an identifier that must follow one another
	in    scope    // the packages to which the rule applies
	text  bool     // comments and Markdown are checked as well as names
	use   string   // what to write instead
	but   []string // identifiers that stay legal, and phrases that make an identifier legal
	line  int      // the line of the rule in the table
}

// A scope is a set of folders: either a list of folders, or all folders except a list.
type scope struct {
	all     bool
	folders []string // the folders in the set, or the folders that it excludes
}

// holds reports whether the scope contains the folder dir or a folder above it.
func (s scope) holds(dir string) bool {
	listed := false
	for _, f := range s.folders {
		if dir == f || strings.HasPrefix(dir, f+"/") {
			listed = true
		}
	}
	return listed != s.all
}

// A wordTable is the parsed content of words.txt.
type wordTable struct {
	rules  []rule
	shared map[string]string // exported type names that packages share, with their one meaning
}

// parseTable reads the table. Each line is one of
//
//	name  SCOPE | WORDS | USE [| BUT]   the words may not occur in names
//	text  SCOPE | WORDS | USE [| BUT]   nor in comments and Markdown
//	type  NAME | MEANING                packages may share this exported type name
//
// SCOPE is * or folders with commas between them; *,-a,-b is all but a and b. WORDS has commas
// between words; a word with a space in it consists of several parts of an identifier. BUT lists
// identifiers that stay legal, and phrases of several parts that make an identifier legal: with "in
// place", inPlaceSum is legal.
func parseTable(text string) (*wordTable, error) {
	t := &wordTable{shared: map[string]string{}}
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		kind, rest, _ := strings.Cut(line, " ")
		cols := strings.Split(rest, "|")
		for c := range cols {
			cols[c] = strings.TrimSpace(cols[c])
		}
		switch {
		case kind == "type" && len(cols) == 2:
			t.shared[cols[0]] = cols[1]
		case (kind == "name" || kind == "text") && (len(cols) == 3 || len(cols) == 4) && cols[1] != "" && cols[2] != "":
			t.rules = append(t.rules, rulesOf(kind, cols, i+1)...)
		default:
			return nil, fmt.Errorf("words.txt:%d: got %q, want \"name SCOPE | WORDS | USE [| BUT]\", text or type", i+1, line)
		}
	}
	return t, nil
}

func rulesOf(kind string, cols []string, line int) []rule {
	var but []string
	if len(cols) == 4 {
		but = list(cols[3])
	}
	var rules []rule
	for _, w := range list(cols[1]) {
		rules = append(rules, rule{
			words: strings.Fields(strings.ToLower(w)),
			in:    scopeOf(cols[0]),
			text:  kind == "text",
			use:   cols[2],
			but:   but,
			line:  line,
		})
	}
	return rules
}

func scopeOf(col string) scope {
	var s scope
	for _, f := range list(col) {
		if f == "*" {
			s.all = true
			continue
		}
		s.folders = append(s.folders, strings.TrimPrefix(f, "-"))
	}
	return s
}

// list splits a column at its commas.
func list(col string) []string {
	var out []string
	for _, w := range strings.Split(col, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}
