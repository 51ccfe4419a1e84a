package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// lines holds the numbers of lines in some files.
type lines struct {
	code     int // lines with at least one token
	comments int // lines with only comments
	all      int // all lines, also blank lines
}

func (n lines) plus(o lines) lines {
	return lines{n.code + o.code, n.comments + o.comments, n.all + o.all}
}

// share returns the percentage of comment lines among all lines of comments and code.
func (n lines) share() float64 { return 100 * float64(n.comments) / float64(max(1, n.comments+n.code)) }

// A module holds the lines of a module's Go files.
type module struct {
	packages  map[string]lines // by folder; neither tests nor generated files
	tests     lines
	generated lines
	assembly  int // all lines of .s files
}

// generatedMark matches the line that marks a generated file.
var generatedMark = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// measure counts the files below root. It skips hidden folders, testdata, and folders that have a
// go.mod.
func measure(root string) (module, error) {
	m := module{packages: make(map[string]lines)}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && isSkipped(path, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		return m.add(root, path)
	})
	return m, err
}

func isSkipped(path, name string) bool {
	if strings.HasPrefix(name, ".") || name == "testdata" {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

// add counts one file.
func (m *module) add(root, path string) error {
	ext := filepath.Ext(path)
	if ext != ".go" && ext != ".s" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if ext == ".s" {
		m.assembly += bytes.Count(text, []byte("\n"))
		return nil
	}
	n, err := countLines(path, text)
	if err != nil {
		return err
	}
	switch {
	case strings.HasSuffix(path, "_test.go"):
		m.tests = m.tests.plus(n)
		return nil
	case generatedMark.Match(text):
		m.generated = m.generated.plus(n)
		return nil
	}
	folder, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return err
	}
	folder = filepath.ToSlash(folder)
	m.packages[folder] = m.packages[folder].plus(n)
	return nil
}

// countLines counts the lines of Go source. A line of a raw string is code. A line
// with code and a comment is code.
func countLines(name string, text []byte) (lines, error) {
	files := token.NewFileSet()
	file := files.AddFile(name, -1, len(text))
	var problem error
	var s scanner.Scanner
	s.Init(file, text, func(at token.Position, msg string) { problem = fmt.Errorf("%v: %s", at, msg) }, scanner.ScanComments)
	code, comments := make(map[int]bool), make(map[int]bool)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && literal != ";" {
			continue // inserted at the end of a line
		}
		set := code
		if tok == token.COMMENT {
			set = comments
		}
		first := file.PositionFor(pos, false).Line
		for i := range 1 + strings.Count(literal, "\n") {
			set[first+i] = true
		}
	}
	for line := range code {
		delete(comments, line)
	}
	return lines{code: len(code), comments: len(comments), all: bytes.Count(text, []byte("\n"))}, problem
}
