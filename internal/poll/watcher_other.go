//go:build !linux

package poll

// A Watcher does nothing on this system, because each Conn has its own goroutine.
type Watcher struct{}

// Stop does nothing.
func (*Watcher) Stop() {}
