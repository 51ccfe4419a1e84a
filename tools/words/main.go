// Command words checks the names and the comments of this module against a table of words.
//
//	go run ./tools/words        check the module in the current folder
//
// The table, words.txt beside this file, lists words. For each it says in which packages the word
// may not occur, and what to write instead. A word is compared with the parts of each declared
// identifier: markDead has the parts mark and dead. Tests are checked like all other code, and so
// are the names of files. A word that the table marks as text may not occur in comments and
// Markdown either.
//
// A type name that two packages export fails, too, unless the table lists it with its one meaning.
package main

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

//go:embed words.txt
var table embed.FS

func main() {
	text, err := fs.ReadFile(table, "words.txt")
	if err != nil {
		fail(err)
	}
	t, err := parseTable(string(text))
	if err != nil {
		fail(err)
	}
	found, err := check(os.DirFS("."), t)
	if err != nil {
		fail(err)
	}
	for _, f := range found {
		fmt.Println(f)
	}
	if len(found) > 0 {
		fail(fmt.Errorf("found %d names or words that tools/words/words.txt replaces", len(found)))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "words:", strings.TrimSpace(err.Error()))
	os.Exit(1)
}
