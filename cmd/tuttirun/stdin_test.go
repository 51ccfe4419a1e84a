//go:build unix

package main

import (
	"io"
	"testing"
)

func TestStandardInputGoesToOneRank(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"0 has input", "1 has "}},
		{[]string{"-stdin", "1"}, []string{"0 has ", "1 has input"}},
		{[]string{"-stdin", "1", "-stdin", "none"}, []string{"0 has ", "1 has "}},
	} {
		j := start(t, append(append([]string{"-np", "2"}, c.args...), "sh", "-c", `echo "$TUTTI_RANK has $(cat)"`)...)
		io.WriteString(j.stdin, "input") // the pipe may be closed
		j.stdin.Close()
		j.expect(c.want...)
		j.ends(0)
	}
}
