package tcp

import "time"

// A closed Conn keeps its socket until the peer's kernel has acknowledged what was written. A
// socket that is closed earlier answers further bytes with a reset, and the reset would discard
// bytes whose frames are Done. Usually everything is acknowledged already, or within a few
// milliseconds; only an unreachable peer makes the Conn wait for the whole time.
const (
	drainTime        = time.Second
	drainTimePending = 100 * time.Millisecond // for a peer that is not authenticated

	firstDrainPoll = 250 * time.Microsecond // the pause between two polls doubles
	lastDrainPoll  = 8 * time.Millisecond
)

// awaitDrained polls the function drained until it returns true or the time is over.
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
