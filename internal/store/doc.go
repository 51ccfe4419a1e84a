// Package store keeps the small record of a job that outlives every rank: which epoch the job is
// in, and who its members are. The launcher holds a Memory and serves it to each rank over a
// connection; the rank's Client is the same Store on the other end. A file or a service such as
// etcd can implement Store as well.
//
// # The record of a job
//
// The launcher alone writes the key EpochKey, by compare-and-swap, so each epoch has one list of
// members. A rank has a part of its own, which other ranks can neither read nor write:
//
//	key             written by  content
//	EpochKey        launcher    an Epoch in JSON
//	AddressesKey    launcher    for error texts, one line per rank of the epoch: its listener's address and
//	                            its host; cut off at MaxValue
//	CredentialsKey  launcher    the rank's secret and certificate for an epoch, a jobca.Bundle
//	ReadyKey        the rank    its listener's address and, after a space, the Epoch's Launcher, if it is
//	                            not empty; each new version asks for the next epoch, and an empty one
//	                            withdraws the request
//
// # Frames
//
// Requests and answers are JSON objects, one per line, of at most maxLine bytes. An answer has the
// id of its request. Answers come in any order, because a watch is answered when the value changes.
//
//	{"id":7,"op":"watch","key":"epoch","version":3}
//	{"id":7,"version":4,"value":"..."}
//
// The operations are get, swap, watch, and cancel, which ends the watch of the same id and has no
// answer.
//
// # What it does not know
//
// The package does not decide who is a member, and it does not authenticate: the launcher serves a
// connection that only one process has inherited.
package store
