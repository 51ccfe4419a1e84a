// Package hostlist holds the list of hosts that a discovery script of tuttirun prints in a test. It
// does not know what the lines mean.
package hostlist

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A List is a file of hosts. One goroutine at a time may call Set.
type List struct {
	t    testing.TB
	path string
}

// New returns a List with the given lines.
func New(t testing.TB, lines ...string) *List {
	t.Helper()
	l := &List{t, filepath.Join(t.TempDir(), "hosts")}
	l.Set(lines...)
	return l
}

// Set replaces all lines at once. The script prints either the old or the new ones.
func (l *List) Set(lines ...string) {
	l.t.Helper()
	fresh := l.path + ".new"
	if err := os.WriteFile(fresh, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(fresh, l.path); err != nil {
		l.t.Fatal(err)
	}
}

// Script returns the discovery script.
func (l *List) Script() string { return "cat " + l.path }
