//go:build !linux

package poll

// A Watcher does nothing here: Conns have goroutines of their own.
type Watcher struct{}

// Stop does nothing.
func (*Watcher) Stop() {}
