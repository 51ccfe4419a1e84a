// Package agreement decides, for one rank, what the members of a communicator agree on after losses:
// which of them go on, and the AND of the bits that they contribute.
//
// It is a pure state machine: Step takes an Input and returns Outputs. It knows no clock, no
// goroutine, no connection and no bytes on a wire. Package comm owns one Machine per agreement and
// carries out what it says. So a test can run the same decisions through every order of events of
// four ranks.
//
// # What is promised
//
//  1. Two members that are alive never decide differently.
//  2. A member decides only with a quorum, so at most one side of a partitioned network goes on.
//  3. A member whose agreement has begun ends once every member of its side has entered and all
//     messages have arrived: it decides, or it fails for want of a quorum.
//
// # Quorum
//
// The base of an agreement is what the agreement before it has decided; the first base is all
// members. Some members of the base, the side, are a quorum when one of these holds:
//
//	more than half of the base
//	exactly half of the base, with the lowest rank of the base
//	every other member of the base is known to be dead
//
// Two sides of the first two kinds have a member in common. The third kind excludes every live
// member of any other side. A weaker rule, by which members known to be dead do not count at all, is
// wrong: of ranks 0, 1 and 2, the last two may have decided to go on without 0 before 2 died. Rank 0
// cannot know that. With 2 not counted it would be exactly half, and go on beside 1.
//
// # Protocol
//
// This is Paxos (Lamport, 1998) for one value, with three changes. Losses are final: a member that
// this rank has lost stays lost. So the lowest member that is left leads, and a rank follows only
// higher leaders as members are lost; no rank counts ballots. The term of leader r is r+1. Second,
// every rank floods its whole State whenever it changes, so a message that is lost, late or repeated
// does no harm. Third, every rank counts the votes itself.
//
//	a member                                    its leader
//	enters: State with Calls, Bits, Term   ->   waits for all members that are left
//	                                            if they are a quorum: a Proposal, with the term
//	accepts it: State with Accepted        <-
//	decides when a quorum of the Proposal's Side has accepted it in the same term
//
// A Proposal's Side is the members whose States the leader had. If one of them has accepted a
// Proposal of an earlier term, the leader proposes the content of the latest of these, since it may
// have been decided. A rank accepts only a Proposal whose Side includes it; the third kind of quorum
// depends on that.
//
// A rank whose own members are no quorum waits until the caller has given up, since the news of a
// death may be on its way. Then it is out: it says so in its State, and others go on without it.
package agreement
