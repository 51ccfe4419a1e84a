package main

import (
	"strings"
	"testing"
)

func TestDotsMatchAnyText(t *testing.T) {
	for _, c := range []struct {
		line, pattern string
		want          bool
	}{
		{"rank 0 of 4", "rank 0 of 4", true},
		{"rank 0 of 4", "rank 0 of", false},
		{"rank 0 of 4", "rank ... of 4", true},
		{"rank 0 of 4", "rank 0 of 4...", true},
		{"rank 0 of 4", "...", true},
		{"rank 0 of 4", "... of ... of 4", false},
		{"loss 0.1, accuracy 97 %", "loss ..., accuracy ... %", true},
		{"loss 0.1, accuracy 97", "loss ..., accuracy ... %", false},
		{"aa", "a...a", true},
		{"a", "a...a", false},
	} {
		if got := matches(c.line, c.pattern); got != c.want {
			t.Errorf("matches(%q, %q) = %v, want %v", c.line, c.pattern, got, c.want)
		}
	}
}

func TestCompareNamesWhatIsMissingAndWhatIsTooMuch(t *testing.T) {
	for name, c := range map[string]struct {
		transcript, output string
		want               string // "" for a match
	}{
		"any order":         {"$ x\na\nb\n", "b\na\n", ""},
		"missing":           {"$ x\na\nb\n", "a\n", `missing: "b"`},
		"twice":             {"$ x\na\na\n", "a\n", `missing: "a"`},
		"unexpected":        {"$ x\na\n", "a\nc\n", `unexpected: "c"`},
		"open":              {"$ x\na\n...\n", "a\nc\n", ""},
		"exact before dots": {"$ x\nr ...\nr 0\n", "r 0\nr 1\n", ""},
		"comment":           {"# hi\n$ x\na\n\n# ho\n", "a\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cases, err := parse(c.transcript)
			if err != nil {
				t.Fatal(err)
			}
			got := cases[0].compare(c.output)
			if c.want == "" && got != nil {
				t.Errorf("got %v, want a match", got)
			}
			if c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)) {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}

func TestParseRefusesATranscriptWithoutCommand(t *testing.T) {
	for _, text := range []string{"", "# only a comment\n", "$ \n", "output\n$ x\n"} {
		if cases, err := parse(text); err == nil {
			t.Errorf("parse(%q) = %v, want an error", text, cases)
		}
	}
}
