package verbs

// A Step is what a Fabric asks its watcher about: a work request that was posted and
// is about to be carried out, or the completion of a work or a receive.
type Step struct {
	From, To   int // Options.Number of the two ends: whose device acts, and its peer
	Completion bool
	Head       []byte // of the frame, if it is a message that carries one; not to be kept
}

// A Break says where in a Step a queue pair breaks.
type Break uint8

// The breaks. The queue pair of the end that takes the step is in the error state
// behind each of them, as after a cable has come off: nothing that was posted is
// carried out, and the peer's device is told nothing.
const (
	NoBreak     Break = iota
	BreakBefore       // the work is not carried out; the completion is lost
	BreakWithin       // half of a write is in the peer's memory, and the peer hears nothing; else as before
	BreakAfter        // the work is carried out, though its end does not hear so; the completion comes, and is the last
)

// Watch has ask be called before each Step of the Fabric's devices that is not a
// failure already: for tests which break each of them in turn. It is called with
// locks of the Fabric's and of Conns on it held, so it must not call them.
func (f *Fabric) Watch(ask func(Step) Break) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ask = ask
}

// judge asks about a step of p's. f.mu is held.
func (p *softPair) judge(w *workRequest, peer *softPair) Break {
	ask := p.device.fabric.ask
	if ask == nil || peer == nil {
		return NoBreak
	}
	s := Step{From: p.device.number, To: peer.device.number, Completion: w == nil}
	if w != nil && !w.write {
		if p, err := parse(w.mem); err == nil {
			s.Head = w.mem[packetLen : packetLen+p.head]
		}
	}
	return ask(s)
}

// breakOff breaks the pair as a Break of a work says, after what of it was done.
func (p *softPair) breakOff(w *workRequest, wake []func()) []func() {
	return p.breakDown(completion{id: w.id, status: retryExceeded}, wake)
}
