package negotiate

import "fmt"

// Tunables are the settings that may change while a coordinator runs. Class changes the order of
// the folds, so it may change results. The other settings do not change a bit of any result.
type Tunables struct {
	Cycle  Duration
	Fusion int
	// Cache says whether tensors are negotiated by cache IDs. It may be true only if Config.Cache
	// is above 0.
	Cache bool
	Class uint8 // the class of algorithms; the caller defines the values
	Final bool  // the caller makes no further changes
}

// valid reports whether a Coordinator could have sent the settings.
func (t Tunables) valid() bool { return t.Cycle >= 0 && t.Fusion >= 0 }

// String returns text such as "cycle 1.0 ms, fusion 1024, cache true, class 0, final".
func (t Tunables) String() string {
	s := fmt.Sprintf("cycle %.1f ms, fusion %d, cache %v, class %d", float64(t.Cycle)/float64(Millisecond), t.Fusion, t.Cache, t.Class)
	if t.Final {
		s += ", final"
	}
	return s
}

// Retune is an input of the Coordinator. It changes the Coordinator's settings, and the settings of
// all Workers at the same point in the order.
type Retune struct{ Tuning Tunables }

// apply first launches the ready tensors, so that a tensor runs with the settings under which it
// became ready.
func (in Retune) apply(c *Coordinator) {
	c.fence() // ready tensors use the old settings
	c.allToSlowPath()
	c.cfg.Cycle, c.cfg.Fusion, c.cacheOff = in.Tuning.Cycle, in.Tuning.Fusion, !in.Tuning.Cache
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseTune, Tuning: in.Tuning})
}

// Tuned is an output of the Worker. It is ordered with Run: every later Bucket is executed with
// these settings.
type Tuned struct{ Tuning Tunables }

// String returns "tuned" and the settings.
func (o Tuned) String() string { return "tuned: " + o.Tuning.String() }

// tune applies the settings on this rank. The Worker uses only the cycle. The caller uses the other
// settings.
func (w *Worker) tune(t Tunables) {
	w.cfg.Cycle = t.Cycle
	w.outputs = append(w.outputs, Tuned{t})
}
