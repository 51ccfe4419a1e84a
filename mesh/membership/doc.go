// Package membership decides, for one rank, who belongs to the job: which control
// links it should have, whom it must doubt, what verdict all ranks hear, who has
// said goodbye, and where a flood or an answer goes next.
//
// It is a pure function: Step takes an Input and the time, and returns Outputs.
// It knows no clock, no goroutine, no connection and no bytes on a wire; package
// mesh owns one State and carries out what it says. So the same decisions run in
// a simulation of nine ranks in a loop, and in transcripts under testdata.
//
// # Who is linked to whom
//
// The ranks that are present (neither gone nor doubted) stand in a circle in
// rank order; each wants a link to those at distance 1, 2, 4, … on both sides.
// The lower rank of a pair dials. Links that are no longer wanted stay.
//
// # How a loss is told from a bad link
//
//  1. A link breaks, or is silent: its ends each flood a Down that names the
//     other. A data connection that breaks is reported the same way, marked data.
//  2. A rank that hears a Down about itself floods a Vouch. Only a rank that is
//     alive, and that some path still reaches, can do that.
//  3. A rank is lost when all its neighbours (but those in doubt themselves) have
//     said Down, or when nobody vouched for it within VouchWait.
//  4. With a Vouch, a control link is dialled again and the Down is taken back by
//     an Up; when that fails, or when it was a data connection, the link between
//     the two is lost.
//
// # How all ranks hear the same verdict
//
// A verdict is flooded with a number, its epoch. A rank that has heard one of an
// epoch announces no other in it, so those of one epoch crossed on their way and
// are heard everywhere within two flood times of the first. SettleWait after the
// first, each rank reports the best one: about a rank rather than a link, about
// the lowest rank, from the lowest rank. The others wait for the next epoch. A
// rank waits a little longer while links are missing that it is about to have.
//
// This is agreement among ranks whose floods arrive within SettleWait/2, not
// consensus: the two sides of a network that is cut in two will blame each other.
//
// # Time
//
// Doubts ripen by the time that this rank lived through. When the whole process
// was stopped, the gap between two Steps counts as two heartbeats, so a rank that
// wakes up does not blame the others for its own sleep.
package membership
