//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	j := start(t, "--completion", "bash")
	var script strings.Builder
	if _, err := j.lines.WriteTo(&script); err != nil {
		t.Fatal(err)
	}
	j.ends(0)
	// Bash sets these variables before it calls the function.
	script.WriteString(`
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1)
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_tuttirun
printf '%s\n' "${COMPREPLY[@]}"
`)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tutti-program"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"tuttirun --output-f":                  "--output-filename",
		"tuttirun -np 2 --completion ":         "bash zsh fish",
		"tuttirun -np 2 --completion f":        "fish",
		"tuttirun -np ":                        "",
		"tuttirun -np 2 tutti-prog":            "tutti-program",
		"tuttirun --genv NAME VALUE --no-such": "",
		"tuttirun --genv NAME --output-f":      "", // the value of NAME
		"tuttirun prog --output-f":             "", // an option of the program
		"tuttirun prog : --output-f":           "--output-filename",
	} {
		cmd := exec.Command("bash", "-c", script.String(), "bash", line)
		cmd.Env = []string{"PATH=" + dir}
		out, err := cmd.Output()
		if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", line, got, err, want)
		}
	}
}
