//go:build unix

package doctor

import (
	"context"
	"strings"
	"testing"
)

func TestErrorOfACommandHasItsStandardError(t *testing.T) {
	r := Examine(context.Background(), Options{Targets: []Target{
		{Name: "n1", Start: Command("sh", "-c", "echo no such host >&2; exit 255")},
		{Name: "n2", Start: Command("/no/such/program")},
		{Name: "n3", Start: Command("sh", "-c", "yes | head -c 100000 >&2; exit 3")}}})
	want := []string{"facts: exit status 255: no such host", "start: fork/exec /no/such/program: no such file", "facts: exit status 3: y; y; y"}
	if len(r.Faults) != len(want) {
		t.Fatalf("got %+v, want %d faults", r.Faults, len(want))
	}
	for i, f := range r.Faults {
		if !strings.HasPrefix(f.What, want[i]) || len(f.What) > 3*maxStderr {
			t.Errorf("got %q, want %q", f.What, want[i])
		}
	}
}

// A command that ignores the end of its input is killed.
func TestClosingACommandEndsIt(t *testing.T) {
	c, err := Command("sleep", "1000")(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v, want that it was killed", err)
	}
}
