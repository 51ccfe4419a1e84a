package transporttest

import (
	"encoding/gob"
	"io"
	"sync"
)

// A post sends what it is given, in order, and has nobody wait for it.
type post struct {
	over sync.WaitGroup

	mu     sync.Mutex // guards the rest
	more   sync.Cond
	queue  []any
	closed bool
}

func newPost(to io.Writer) *post {
	p := new(post)
	p.more.L = &p.mu
	p.over.Go(func() { p.run(gob.NewEncoder(to)) })
	return p
}

func (p *post) say(what any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, what)
	p.more.Signal()
}

func (p *post) run(out *gob.Encoder) {
	for {
		p.mu.Lock()
		for len(p.queue) == 0 && !p.closed {
			p.more.Wait()
		}
		batch := p.queue
		p.queue = nil
		p.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, what := range batch {
			if out.Encode(what) != nil {
				return // the other end is gone, which whoever reads from it hears
			}
		}
	}
}

// stop returns when all is sent.
func (p *post) stop() {
	p.mu.Lock()
	p.closed = true
	p.more.Signal()
	p.mu.Unlock()
	p.over.Wait()
}
