package transport

// A Witness is a Sharer through which its rank publishes what it has done in the
// shared memory. Whoever is about to set a flag there that other ranks wait for
// calls Publish with a function that sets it; it runs at once, or, where this rank
// is to look dead to the others, not at all. No wire is a Witness: it exists for
// package flaky, to which such a flag is what a frame is on a Conn.
type Witness interface {
	Sharer
	Publish(set func())
}
