package negotiate

import "fmt"

// A Tunables is what may change while a coordinator runs: nothing in it changes what
// is reduced with what, but Class, which changes the order of the folds.
type Tunables struct {
	Cycle  Duration
	Fusion int
	Cache  bool  // tensors are negotiated by a bit; there must be room for some
	Class  uint8 // of algorithm; what the runtime makes of it is no matter here
}

// valid refuses what no leader tells.
func (t Tunables) valid() bool { return t.Cycle >= 0 && t.Fusion >= 0 }

// String is "cycle 1.0 ms, fusion 1024, cache true, class 0".
func (t Tunables) String() string {
	return fmt.Sprintf("cycle %.1f ms, fusion %d, cache %v, class %d", float64(t.Cycle)/float64(Millisecond), t.Fusion, t.Cache, t.Class)
}

// Retune has the leader change its ways, and tell all Members to do so at the same
// place in the order.
type Retune struct{ Tuning Tunables }

func (in Retune) apply(c *Coordinator) {
	c.fence() // what is ready goes by what held when it was submitted
	c.allToSlowPath()
	c.cfg.Cycle, c.cfg.Fusion, c.cacheOff = in.Tuning.Cycle, in.Tuning.Fusion, !in.Tuning.Cache
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseTune, Tuning: in.Tuning})
}

// Tuned says, in order with Runs, that what is carried out from now on goes by
// another tuning.
type Tuned struct{ Tuning Tunables }

// String is "tuned" and how.
func (o Tuned) String() string { return "tuned: " + o.Tuning.String() }

func (w *Worker) tune(t Tunables) {
	w.cfg.Cycle = t.Cycle
	w.outputs = append(w.outputs, Tuned{t})
}
