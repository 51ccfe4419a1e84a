package mesh

// A wakeup wakes the one goroutine that receives from it. The channel has one slot. So two raises
// count as one, and no raise is lost between the receiver's last check and its sleep.
type wakeup chan struct{}

func newWakeup() wakeup { return make(wakeup, 1) }

// raise wakes the receiver, now or at its next receive. It never blocks, and anyone may call it.
func (w wakeup) raise() {
	select {
	case w <- struct{}{}:
	default:
	}
}
