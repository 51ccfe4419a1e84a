// Package membership decides, for one rank, who belongs to the job: which control links it should
// have, which ranks it suspects, which failures all ranks report, who has closed in order, and where
// a flood or an answer goes next.
//
// It is a pure state machine: Step takes an Input and the time, and returns Outputs. It knows no
// clock, no goroutine, no connection and no bytes on a wire. Package mesh owns one Machine and
// carries out what it says. So tests can run the same decisions in a simulation of nine ranks, and
// replay the transcripts under testdata.
//
// # Overlay
//
// The ranks that are present (neither gone nor suspected) form a ring in rank order. Each wants
// control links to those at distance 1, 2, 4, … on both sides, a binomial graph. The lower rank of
// a pair dials. Links that are no longer wanted stay.
//
// # Failure detection
//
// The words are those of SWIM (Das, Gupta and Motivala, DSN 2002), but heartbeats run over the links
// of the overlay, and all suspicions are flooded.
//
//  1. Suspect. A link breaks, or is silent: each end floods a Suspected that names the other. A
//     broken data connection is reported the same way, marked as data.
//  2. Refute. A rank that receives a Suspected about itself floods a Refute. Only a rank that is
//     alive, and that some path still reaches, can do that.
//  3. Confirm. A rank is lost when all its neighbours (but those that are suspected themselves)
//     suspect it, or when it has not refuted in time. The suspicion says how long it has.
//  4. Retract. After a Refute the control link is dialled again, and a Retracted takes the suspicion
//     back. If the dial fails, or if it was a data connection, the link between the two is lost.
//
// What one rank's suspicion of another goes through:
//
//	state        entered by                         left by
//	none         -                                  Suspected: unanswered
//	unanswered   Suspected                          Refute: refuted; all neighbours agree, or
//	                                                the time to refute is over: peer lost
//	refuted      Refute                             link up: retracted; no link in time, or it was a
//	                                                data connection: link lost
//	retracted    Retracted                          a newer Suspected: unanswered
//
// # What is a loss, and when
//
//	evidence                                          lost after
//	all neighbours' links to the rank have closed     at once, once all ranks are ready
//	a link has closed, and no process listens at      RefuteTimeout, once all ranks are ready
//	the rank's address
//	nothing was received from the rank                the limit, and RefuteTimeout
//	a link has closed, and the rank does not refute   the limit
//
// The limit is Config.Silence for a rank that runs in time. Each heartbeat says how late its sender
// runs; the limit allows each heartbeat of Config.Silence that delay, up to a minute in all. A link
// that has closed is dialled again at once. So a rank that is alive loses nothing by a cut that is
// shorter than the limit, and a rank that is busy is told from one that is gone. The failure names
// the limit that was used.
//
// While ranks start, both ends may dial, and one of the two connections is closed again. Until all
// ranks are ready, no rank is lost before the limit.
//
// # Agreement on failures
//
// A failure is flooded with the number of an epoch. A rank that has seen one failure of an epoch
// announces no other in it, so all failures of an epoch were announced concurrently, and every rank
// has them within two flood times of the first. ResolveDelay after the first, each rank reports the
// best one: a lost rank before a lost link, then the lowest rank blamed, then the lowest announcer.
// The others are proposed again in the next epoch. A rank waits a little longer while a link that
// could bring more candidates is still being dialled.
//
// This is agreement among ranks whose floods arrive within ResolveDelay/2. It is not consensus: the
// two sides of a partitioned network blame each other.
//
// # Time
//
// Suspicions age by the time that this process has run. When the whole process was suspended, the
// gap between two Steps counts as two heartbeats, so that a rank that resumes does not blame the
// others for its own pause.
package membership
