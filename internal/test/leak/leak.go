// Package leak fails a test that leaves goroutines, descriptors or files in shared
// memory behind.
//
// It compares the process before and after, so tests that use it must not run in
// parallel with others. It knows nothing of what it watches, but how this module's
// files in shared memory are called, which it tells from others' by that.
package leak

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// timeout is how long what is ending may take to end, before it counts as left.
const timeout = 5 * time.Second

// Check notes what the process holds now and, when tb and all its cleanups that
// are registered later have ended, reports as errors what has come since: each
// goroutine by its stack, each descriptor by what it is open on, each file by its
// name. Descriptors and files are seen on Linux only.
func Check(tb testing.TB) {
	tb.Helper()
	startPoller()
	goroutines, files, segments := stacks(), descriptors(), sharedMemory()
	tb.Cleanup(func() {
		for _, left := range waitUntilNone(func() []string { return added(goroutines, stacks()) }) {
			tb.Errorf("a goroutine is left behind:\n%s", left)
		}
		for _, left := range waitUntilNone(func() []string { return added(files, descriptors()) }) {
			tb.Errorf("a descriptor is left behind: %s", left)
		}
		for _, left := range waitUntilNone(func() []string { return added(segments, sharedMemory()) }) {
			tb.Errorf("shared memory is left behind: %s", left)
		}
	})
}

// startPoller makes the runtime open its own descriptors, which stay.
func startPoller() {
	r, w, err := os.Pipe()
	if err == nil {
		r.Close()
		w.Close()
	}
}

// waitUntilNone asks until nothing is left, or patience is over, which it returns.
func waitUntilNone(left func() []string) []string {
	deadline := time.Now().Add(timeout)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		got := left()
		if len(got) == 0 || time.Now().After(deadline) {
			return got
		}
		time.Sleep(pause)
	}
}

// added is what after holds and before does not.
func added(before, after map[string]string) []string {
	var more []string
	for key, text := range after {
		if _, ok := before[key]; !ok {
			more = append(more, text)
		}
	}
	return more
}

// stacks is every goroutine's stack but the caller's, by the goroutine's number.
func stacks() map[string]string {
	buf := make([]byte, 1<<16)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	all := make(map[string]string)
	for i, stack := range bytes.Split(buf, []byte("\n\n")) {
		name, _, found := strings.Cut(string(stack), " [")
		if i == 0 || !found || ownedByRuntime(stack) {
			continue // the first is this goroutine
		}
		all[name] = string(stack)
	}
	return all
}

// ownedByRuntime reports whether the runtime or package testing keeps this
// goroutine, whatever the test does.
func ownedByRuntime(stack []byte) bool {
	for _, s := range []string{
		"created by runtime.",
		"created by testing.",
		"created by os/signal.",
		"runtime.ensureSigM",
	} {
		if bytes.Contains(stack, []byte(s)) {
			return true
		}
	}
	return false
}

// descriptors is every open descriptor of the process, by number and target.
func descriptors() map[string]string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // not Linux
	}
	all := make(map[string]string)
	for _, e := range entries {
		target, err := os.Readlink(dir + "/" + e.Name())
		if err != nil {
			continue // the one that ReadDir had open
		}
		text := fmt.Sprintf("%s -> %s", e.Name(), target)
		all[text] = text
	}
	return all
}

// sharedMemory is every file of this module's in /dev/shm.
func sharedMemory() map[string]string {
	names, _ := filepath.Glob("/dev/shm/*tutti*") // the pattern is well-formed
	all := make(map[string]string)
	for _, name := range names {
		all[name] = name
	}
	return all
}
