// Package agreement decides, for one rank, what the members of a communicator agree on after
// losses: which of them go on, and the AND of the bits that they contribute.
//
// It is a pure state machine: Step takes an Input and returns Outputs. It knows no clock, no
// goroutine, no connection and no bytes on a wire. Package comm owns one Machine per agreement and
// carries out its Outputs. A test can therefore run the same decisions through every order of
// events of four ranks.
//
// # What is promised
//
//  1. Two members that are alive never decide differently.
//  2. A member decides only with a quorum, so at most one side of a partitioned network goes on.
//  3. Once all members on one side of a partitioned network have entered, and all their messages
//     have arrived, the agreement ends on each of them: the member decides, or it fails because
//     there is no quorum.
//
// # Quorum
//
// The base of an agreement is the set of members that the previous agreement decided on. The base
// of the first agreement is all members. A side is a subset of the base. There are three kinds of
// quorums. A side is a quorum
//
//  1. if it is more than half of the base, or
//  2. if it is exactly half of the base, and includes the lowest rank of the base, or
//  3. if every other member of the base is known to be dead.
//
// Two quorums of the first two kinds have a member in common. A quorum of the third kind leaves no
// live member for any other side. A decision by the third kind counts only the votes of members
// that know of all these deaths. A member that does not know of them may still follow another
// leader, and decide together with members that die later.
//
// It would be wrong to leave members known to be dead out of the base. For example, ranks 1 and 2
// of three may have decided to go on without rank 0, before rank 2 died. Rank 0 cannot know of this
// decision. If the base were ranks 0 and 1, rank 0 would be a quorum of the second kind, and would
// go on at the same time as rank 1.
//
// # Protocol
//
// The protocol is Paxos (Lamport, 1998) for one value, with three changes. First, losses are final:
// a member that this rank has lost stays lost. The lowest remaining member therefore leads, and a
// rank follows only higher leaders as members are lost. The ballot number is the term of the
// leader, and the term of leader r is r+1. Second, every rank floods its whole State whenever the
// State changes, so a message that is lost, late or repeated does no harm. Third, every rank counts
// the votes itself.
//
//	a member                                    its leader
//	enters: State with Calls, Bits, Term   ->   waits for all members that are left
//	                                            if they are a quorum: a Proposal, with the term
//	accepts it: State with Accepted        <-
//	decides when a quorum of the Proposal's Side has accepted it in the same term
//
// A Proposal's Side is the set of members whose States the leader had. If one of these members has
// accepted a Proposal of an earlier term, that Proposal may have been decided. The leader then
// proposes the content of the latest such Proposal. A rank accepts only a Proposal whose Side
// includes the rank. The third kind of quorum depends on that rule.
//
// A rank whose own side is not a quorum keeps waiting, because the news of a death may be on its
// way. When its caller gives up, the rank reports in its State that it is out, and the other ranks
// go on without it.
package agreement
