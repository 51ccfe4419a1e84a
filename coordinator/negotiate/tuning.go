package negotiate

import "fmt"

// Tunables are the settings that may change while a coordinator runs. Class changes the order of
// the folds; the others change no bit of any result.
type Tunables struct {
	Cycle  Duration
	Fusion int
	// Cache says whether tensors are negotiated by cache IDs. Config.Cache must be above 0 for
	// that.
	Cache bool
	Class uint8 // of algorithms; its meaning is the caller's
	Final bool  // the caller changes them no more
}

// valid reports whether a Coordinator could have sent the settings.
func (t Tunables) valid() bool { return t.Cycle >= 0 && t.Fusion >= 0 }

// String is "cycle 1.0 ms, fusion 1024, cache true, class 0, final".
func (t Tunables) String() string {
	s := fmt.Sprintf("cycle %.1f ms, fusion %d, cache %v, class %d", float64(t.Cycle)/float64(Millisecond), t.Fusion, t.Cache, t.Class)
	if t.Final {
		s += ", final"
	}
	return s
}

// Retune is an input of the Coordinator: it changes its settings, and all Workers change theirs at
// the same point in the order.
type Retune struct{ Tuning Tunables }

// apply launches what is ready first, so that a tensor goes by the settings under which it became
// ready.
func (in Retune) apply(c *Coordinator) {
	c.fence() // what is ready goes by the old settings
	c.allToSlowPath()
	c.cfg.Cycle, c.cfg.Fusion, c.cacheOff = in.Tuning.Cycle, in.Tuning.Fusion, !in.Tuning.Cache
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseTune, Tuning: in.Tuning})
}

// Tuned is an output of the Worker: what is executed from now on, in order with Run, goes by these
// settings.
type Tuned struct{ Tuning Tunables }

// String is "tuned" and the settings.
func (o Tuned) String() string { return "tuned: " + o.Tuning.String() }

// tune applies the settings on this rank. Only the cycle is the Worker's; the caller has the
// others.
func (w *Worker) tune(t Tunables) {
	w.cfg.Cycle = t.Cycle
	w.outputs = append(w.outputs, Tuned{t})
}
