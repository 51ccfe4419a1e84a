package tcp

import "time"

// How long a closed connection is kept while the peer's system has yet to take
// what was written. A closed socket answers further bytes with a reset, and that
// would take back bytes whose frames are done. Usually nothing is on its way, or
// a few milliseconds end it; a peer that is cut off costs all the time.
const (
	drainTime        = time.Second
	drainTimePending = 100 * time.Millisecond // for a peer that was not admitted

	firstDrainPoll = 250 * time.Microsecond // between looks, doubling
	lastDrainPoll  = 8 * time.Millisecond
)

// awaitDrained asks settled again and again, until it is true or the time is over.
func awaitDrained(pending bool, drained func() bool) {
	limit := drainTime
	if pending {
		limit = drainTimePending
	}
	deadline := time.Now().Add(limit)
	for pause := firstDrainPoll; !drained() && time.Now().Before(deadline); pause = min(2*pause, lastDrainPoll) {
		time.Sleep(pause)
	}
}
