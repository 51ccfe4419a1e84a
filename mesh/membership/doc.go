// Package membership decides, for one rank, who belongs to the job: which control links it should
// have, which ranks it suspects, which failures all ranks report, who has left by Close, and where
// a flood or an answer goes next.
//
// It is a pure state machine: Step takes an Input and the time, and returns Outputs. It has no
// clock, goroutine or connection, and does not know how messages are encoded. Package mesh owns one
// Machine and carries out its Outputs. So tests can run the same decisions in a simulation of nine
// ranks, and replay the transcripts under testdata.
//
// # Overlay
//
// The ranks that are present (neither gone nor suspected) form a ring in rank order. Each rank
// wants control links to the ranks at distance 1, 2, 4, … on both sides. These links form a
// binomial graph. The lower rank of a pair dials. Links that are no longer wanted stay.
//
// # Failure detection
//
// The terms come from SWIM (Das, Gupta and Motivala, DSN 2002). In contrast to SWIM, heartbeats run
// over the links of the overlay, and all suspicions are flooded.
//
//  1. Suspect. When a link breaks or is silent, each end floods a Suspected that names the other
//     end. A broken data connection is reported in the same way, marked as data.
//  2. Refute. A rank that receives a Suspected about itself floods a Refute. Only a rank that is
//     alive and reachable over some path can do that.
//  3. Confirm. A rank is lost when all its neighbours suspect it, or when it has not refuted in
//     time. Neighbours that are suspected themselves do not count. The Suspected says how much time
//     the rank has.
//  4. Retract. After a Refute the control link is dialled again, and then a Retracted takes the
//     suspicion back. If the dial fails, or if the broken connection was a data connection, the
//     link between the two ranks is lost.
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
//	all neighbours' links to the rank have closed     at once, once all ranks are ready; not with
//	                                                  Config.Redial
//	the same, and no process listens at its address   at once, once all ranks are ready
//	a link has closed, and no process listens at      RefuteTimeout, once all ranks are ready
//	the rank's address
//	nothing was received from the rank                the limit, and RefuteTimeout
//	a link has closed, and the rank does not refute   the limit; with Config.Redial the limit, and
//	                                                  RefuteTimeout
//
// The limit is Config.Silence for a rank that runs in time. Each heartbeat says how late its sender
// runs. The limit adds this delay once for each heartbeat that fits in Config.Silence, up to a
// minute in all. A link that has closed is dialled again at once. So a network outage that is
// shorter than the limit does no harm to a rank that is alive, unless it closes all links of that
// rank. With Config.Redial the outage may close all of them: the rank is dialled until the limit,
// and the dial that begins then may still succeed. A busy rank is not mistaken for a lost rank. The
// failure names the limit that was used.
//
// While ranks start, both ends may dial, and then one of the two connections is closed again.
// Therefore no rank is lost before the limit until all ranks are ready.
//
// # Agreement on failures
//
// A failure is flooded with the number of an epoch. A rank that has seen one failure of an epoch
// announces no other failure in that epoch. So all failures of an epoch were announced
// concurrently, and every rank has them within two flood times of the first failure. ResolveDelay
// after the first failure, each rank reports the best failure. A lost rank comes before a lost
// link, then the lowest blamed rank counts, then the lowest announcer. The other failures are
// proposed again in the next epoch. While a link that could bring more candidates is still being
// dialled, a rank waits a little longer.
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
