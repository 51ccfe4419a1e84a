package mesh

// A wakeup wakes the one goroutine that receives from it. It has one slot: raising it twice is the
// same as once, and none is lost between the receiver's last look and its sleep.
type wakeup chan struct{}

func newWakeup() wakeup { return make(wakeup, 1) }

// raise wakes the receiver, now or at its next receive. It never blocks, and anyone may call it.
func (w wakeup) raise() {
	select {
	case w <- struct{}{}:
	default:
	}
}
