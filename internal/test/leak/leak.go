// Package leak fails a test that leaves goroutines, descriptors or files in shared memory behind.
//
// It compares the process before and after, so tests that use it must not run in parallel with
// others. It does not know what it watches, except the names of this module's files in shared
// memory.
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

// timeout is the time after which a resource that is still present counts as a leak.
const timeout = 5 * time.Second

// Check records the process's current goroutines, descriptors and files. When tb and all later
// cleanups have ended, Check reports each new item as an error: a goroutine by its stack, a
// descriptor by its target, a file by its name. It checks descriptors and files only on Linux.
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

// startPoller makes the runtime open the descriptors of its poller, which stay open, before the
// first snapshot. Any use of a pipe does that.
func startPoller() {
	r, w, err := os.Pipe()
	if err == nil {
		r.Close()
		w.Close()
	}
}

// waitUntilNone calls the function left until it returns nothing. After timeout it returns the last
// result. Goroutines and descriptors may end a little after the call that closed them has returned,
// so a single check would report false leaks.
func waitUntilNone(left func() []string) []string {
	deadline := time.Now().Add(timeout)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		got := left()
		if len(got) == 0 || time.Now().After(deadline) {
			return got
		}
		// Reason: the ends of goroutines and descriptors have no common event. The loop ends with
		// the last leftover.
		time.Sleep(pause)
	}
}

// added returns the items of after that are not in before.
func added(before, after map[string]string) []string {
	var more []string
	for key, text := range after {
		if _, ok := before[key]; !ok {
			more = append(more, text)
		}
	}
	return more
}

// stacks returns the stacks of all goroutines except the caller, by the goroutine's number. It
// grows its buffer until all stacks fit.
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
			continue // the first stack belongs to this goroutine
		}
		all[name] = string(stack)
	}
	return all
}

// ownedByRuntime reports whether a goroutine belongs to the runtime or to package testing, which
// keep it whatever the test does.
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

// descriptors returns every open descriptor of the process, by number and target.
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
			continue // the descriptor that ReadDir had open
		}
		text := fmt.Sprintf("%s -> %s", e.Name(), target)
		all[text] = text
	}
	return all
}

// sharedMemory returns this module's files in /dev/shm.
func sharedMemory() map[string]string {
	names, _ := filepath.Glob("/dev/shm/*tutti*") // cannot fail, because the pattern is well-formed
	all := make(map[string]string)
	for _, name := range names {
		all[name] = name
	}
	return all
}
