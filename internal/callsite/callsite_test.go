package callsite

import (
	"strings"
	"testing"
	"time"
)

func TestHereReturnsTheCallersLine(t *testing.T) {
	if got := Here().String(); !strings.HasPrefix(got, "callsite_test.go:") {
		t.Errorf("got %q, want this file", got)
	}
	if got := (Site{}).String(); got != "" {
		t.Errorf("the zero Site is at %q", got)
	}
}

func TestCurrentLineSkipsTheStandardLibrary(t *testing.T) {
	id := make(chan uint64)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		id <- Goroutine()
		select { // parked in the runtime; this line made the call
		case <-stop:
		case <-time.After(time.Hour):
		}
	}()
	g := <-id
	if got := CurrentLine(g); !strings.HasPrefix(got, "callsite_test.go:") {
		t.Errorf("got %q, want this file", got)
	}
	close(stop)
	<-done
	if got := CurrentLine(g); got != "" {
		t.Errorf("a goroutine that has ended is at %q", got)
	}
}

func TestInStandardLibrary(t *testing.T) {
	home, ok := standardLibraryDir()
	if !ok || !inStandardLibrary(home+"time/sleep.go") {
		t.Errorf("time/sleep.go below %q is not standard", home)
	}
	if home != "" && inStandardLibrary("/somewhere/else/time/sleep.go") {
		t.Error("a stranger's file is standard")
	}
}

func BenchmarkHere(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Here()
	}
}
