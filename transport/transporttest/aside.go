package transporttest

import (
	"runtime"
	"testing"
)

// newNode makes a Node, if mk does not give up.
func (l *lender) newNode() (node Node, ok bool) {
	made := make(chan Node, 1)
	go func() {
		defer close(made)
		made <- l.mk(l.tb, 1)[0]
	}()
	node, ok = <-made
	return node, ok
}

// takeBack closes what a borrower that is gone has left open.
func (l *lender) takeBack() {
	l.mu.Lock()
	l.over = true
	var left []Node
	for number, node := range l.nodes {
		if !l.ended[number] {
			left = append(left, node)
		}
	}
	for _, c := range l.conns {
		close(c.replies) // only orders write there, and none come any more
	}
	l.mu.Unlock()
	if len(left) > 0 {
		l.tb.Errorf("the borrower has ended without closing %d of its Nodes", len(left))
	}
	for _, node := range left {
		node.Transport.Close()
	}
}

// An aside is a TB for a goroutine that is not the test's: what would end the test ends
// that goroutine, and the test has failed.
type aside struct{ testing.TB }

// FailNow implements testing.TB.
func (a aside) FailNow() {
	a.TB.Fail()
	runtime.Goexit()
}

// Fatal implements testing.TB.
func (a aside) Fatal(args ...any) {
	a.TB.Helper()
	a.TB.Error(args...)
	runtime.Goexit()
}

// Fatalf implements testing.TB.
func (a aside) Fatalf(format string, args ...any) {
	a.TB.Helper()
	a.TB.Errorf(format, args...)
	runtime.Goexit()
}
