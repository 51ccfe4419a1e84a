package ps

import (
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/storage"
)

// An engine carries out the jobs of the parts that it owns: those of higher priority first, and
// those of one priority in their order.
type engine struct {
	mu    sync.Mutex
	wake  sync.Cond
	jobs  queue[*job]
	order uint64
	ended bool // run returns when jobs is empty
	over  bool // run has returned, or is about to
}

// A job is a request in the server.
type job struct {
	// At most one is set: the session of the remote client, the call of this rank's own client, or the
	// other server. None is set for a job of the server itself.
	session *session
	call    *call
	peer    *peer

	client   uint64 // its id
	rank     int    // of the client
	epoch    uint64 // in which the request came
	q        message.Request
	part     *shard
	priority int
	order    uint64
	members  bool // the set of clients has changed; there is no request

	// With do set, the engine calls it, and then done; there is no request.
	do   func(*shard)
	done *sync.WaitGroup

	// With install set, the part is replaced by loaded; there is no request.
	install *installation
	loaded  *shard

	// body is the body of the request. It is in buffer, which the job owns, or, where buffer is nil,
	// in memory of the own client, which may use it again when the call is done.
	body   []byte
	buffer *storage.Buffer

	times   *requestTimes // nil without a timeline
	name    uint64        // in the machine; see shard.jobs
	replied bool          // the last reply has been sent
	used    bool          // the body is no longer needed
}

func (j *job) before(k *job) bool {
	if j.priority != k.priority {
		return j.priority > k.priority
	}
	return j.order < k.order
}

func newEngine() *engine {
	e := &engine{jobs: queue[*job]{before: (*job).before}}
	e.wake.L = &e.mu
	return e
}

// add adds a job. Once run has returned, it discards the job.
func (e *engine) add(j *job) {
	e.mu.Lock()
	if e.over {
		e.mu.Unlock()
		j.discard()
		return
	}
	e.order++
	j.order = e.order
	e.jobs.push(j)
	e.mu.Unlock()
	e.wake.Signal()
}

func (e *engine) queued() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.jobs.len()
}

// end lets run return after the jobs in the queue.
func (e *engine) end() {
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	e.wake.Signal()
}

func (e *engine) run() {
	for j := e.next(); j != nil; j = e.next() {
		j.part.run(j)
	}
}

func (e *engine) next() *job {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.jobs.len() == 0 {
		if e.ended {
			e.over = true
			return nil
		}
		e.wake.Wait()
	}
	return e.jobs.pop()
}

// release gives the body back.
func (j *job) release() {
	if j.buffer != nil {
		j.buffer.Release()
	}
	j.buffer, j.body = nil, nil
}

// discard ends a job after the end of the server. Remote clients get no reply: a server that ends
// before them has revoked the communicator.
func (j *job) discard() {
	switch {
	case j.call != nil:
		j.finish(nil, j.part.s.errEnded())
	case j.install != nil:
		j.install.fail(j.part.s.errEnded())
	case j.do != nil:
		j.done.Done()
	default:
		j.release()
	}
}

// onShards calls do for every part, on the engine of the part after all jobs that it has, and waits.
func (s *Server) onShards(do func(*shard)) {
	var done sync.WaitGroup
	s.mu.Lock()
	for _, p := range s.parts {
		done.Add(1)
		p.engine.add(&job{part: p, priority: lowest, do: do, done: &done})
	}
	s.mu.Unlock()
	done.Wait()
}

// finish ends a request that no part has: it replies with a short body, or an error.
func (j *job) finish(body []byte, err error) {
	j.release()
	j.reply(0, body, nil, err)
}

// reply sends the last reply to a request. If value is not nil, it holds body, and reply releases
// it when it is no longer used.
func (j *job) reply(version uint64, body []byte, value *storage.Buffer, err error) {
	if j.part == nil {
		j.times = nil // of no tensor
	}
	if j.times != nil {
		j.times.tensor = j.part.spec.Name
		j.times.bytes += len(body)
		j.times.mark(replied)
	}
	release := func(error) {
		if value != nil {
			value.Release()
		}
	}
	if j.call != nil {
		if err == nil {
			if j.call.allocate {
				j.call.dst = body
			}
			copy(j.call.dst, body)
		}
		release(nil)
		j.times.end()
		j.call.served(err)
		return
	}
	p := message.ReplyHead{Kind: message.Done, DType: j.q.DType, ID: j.q.ID, Version: version, Size: len(body)}
	if err != nil {
		body, p.Kind = wireError(err), message.Refused
		p.Size = len(body)
	}
	s := j.session.s
	s.sent.Add(uint64(len(body)))
	j.session.send(&p, body, j.priority, j.times, func(err error) {
		release(err)
		j.times.end()
	})
}

// acknowledge tells the client of a PushPull that its push has been applied.
func (j *job) acknowledge() {
	if j.session != nil {
		j.session.send(&message.ReplyHead{Kind: message.Acknowledged, ID: j.q.ID}, nil, j.priority, nil, func(error) {})
	}
}

// send queues a reply.
func (x *session) send(p *message.ReplyHead, body []byte, priority int, times *requestTimes, sent func(error)) {
	m := &outgoing{priority: priority, body: body, sent: sent, times: times, started: serverStarted}
	m.headSize = len(p.Append(m.head[:0]))
	x.out.add(m)
}

// wireError returns the wire form of an error.
func wireError(err error) []byte {
	f, ok := err.(*fault.Error)
	if !ok {
		f = fault.New(fault.Misuse, "ps", -1, "%w", err)
	}
	return f.AppendWire(nil)
}
