// Package poll holds code shared by transports whose Conns own file descriptors and are polled by
// waiters.
//
//	Gate        guards the life of a descriptor, without a lock
//	Watcher     one goroutine that waits for descriptors that no goroutine polls
//	Caller      one goroutine for callbacks that no wait can detect
//	FirstError  the error that a Conn reports from its first failure on
//
// It does not know what the descriptors are, nor what is read from them.
package poll
