// Package poll has what Conns share that own their descriptors and are polled by
// whoever waits for them: a Gate that guards the life of a descriptor, a Watcher
// that waits for those that nobody polls, a Caller for callbacks that no wait can
// see coming, and the FirstError. It does not know what the descriptors are, nor
// what is read from them.
package poll
