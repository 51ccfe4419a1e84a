package launch

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestParseStatCopesWithAnyName(t *testing.T) {
	for text, want := range map[string]process{
		"7 (sh) S 1 5 5 0":           {pid: 7, group: 5, name: "sh"},
		"7 (a) b) (c) Z 1 42 5 0":    {pid: 7, group: 42, name: "a) b) (c", zombie: true},
		"7 (tmux: server) R 1 9 5 0": {pid: 7, group: 9, name: "tmux: server"},
	} {
		if got, ok := parseStat(7, text); !ok || got != want {
			t.Errorf("%q: got %+v, want %+v", text, got, want)
		}
	}
	for _, text := range []string{"", "7", "7 (sh", "7 )sh(", "7 (sh) S", "7 (sh) S 1 x"} {
		if got, ok := parseStat(7, text); ok {
			t.Errorf("%q: got %+v, want none", text, got)
		}
	}
}

func TestProcessesFindsThisOne(t *testing.T) {
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(all, func(p process) bool { return p.pid == os.Getpid() && !p.zombie }) {
		t.Errorf("this process is not among %d", len(all))
	}
}

// The guardian acts only on the lines that it reads from the pipe. No line may make it signal its
// own process group, or every process.
func TestGuardianFollowsThePipe(t *testing.T) {
	left := remains{groups: map[int]bool{7: true, 8: true}}
	bye := left.watchPipe(strings.NewReader("+12\n+13\n-12\n-8\n+0\n+1\n-1\n+-1\nnonsense\n/tmp/a b\n\n14\n"))
	if bye || len(left.groups) != 2 || !left.groups[13] || !left.groups[7] || left.dir != "/tmp/a b" {
		t.Errorf("got %v %v, want groups 7 and 13, and the directory", left, bye)
	}
	if bye := left.watchPipe(strings.NewReader("+12\nbye\n")); !bye {
		t.Error("a goodbye was not heard")
	}
}
