package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A testCase is one command and its expected output.
type testCase struct {
	line   string
	output []string // "..." within a line stands for any text
	open   bool     // further lines may appear
}

// parse parses a transcript. The command's documentation describes the form.
func parse(text string) ([]testCase, error) {
	var cases []testCase
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if command, ok := strings.CutPrefix(line, "$ "); ok && strings.TrimSpace(command) != "" {
			cases = append(cases, testCase{line: command})
			continue
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if len(cases) == 0 {
			return nil, fmt.Errorf("output %q stands before any command", line)
		}
		s := &cases[len(cases)-1]
		if line == "..." {
			s.open = true
		} else {
			s.output = append(s.output, line)
		}
	}
	if len(cases) == 0 {
		return nil, errors.New("no command")
	}
	return cases, nil
}

// compare returns an error that lists the expected lines that are not in output, and the unexpected
// lines of output. A line of output matches at most one expected line. Exact lines are matched
// first, because an expected line with "..." could otherwise take the only line of output that an
// exact line matches.
func (s testCase) compare(output string) error {
	expected := slices.Clone(s.output)
	slices.SortStableFunc(expected, func(a, b string) int {
		return strings.Count(a, "...") - strings.Count(b, "...")
	})
	rest := slices.DeleteFunc(strings.Split(output, "\n"), func(l string) bool { return l == "" })
	var failures []error
	for _, want := range expected {
		at := slices.IndexFunc(rest, func(got string) bool { return matches(got, want) })
		if at < 0 {
			failures = append(failures, fmt.Errorf("missing: %q", want))
			continue
		}
		rest = slices.Delete(rest, at, at+1)
	}
	if !s.open {
		for _, got := range rest {
			failures = append(failures, fmt.Errorf("unexpected: %q", got))
		}
	}
	return errors.Join(failures...)
}

// matches reports whether line is pattern, with any text for each "...".
func matches(line, pattern string) bool {
	parts := strings.Split(pattern, "...")
	rest, ok := strings.CutPrefix(line, parts[0])
	if !ok || len(parts) == 1 {
		return ok && rest == ""
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[last])
}
