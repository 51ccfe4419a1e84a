//go:build !linux

package poll

// A Watcher is of no use here: Conns have goroutines of their own.
type Watcher struct{}

// Stop has nothing to end.
func (*Watcher) Stop() {}
