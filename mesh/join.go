package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// The pace of the address exchange.
const (
	joinFirst = time.Millisecond       // between two dials of rank 0, growing
	joinLast  = 500 * time.Millisecond // up to this
	joinTell  = time.Second            // between two words from rank 0 on who is missing
	joinIdle  = 10 * time.Second       // without a word, after which rank 0 is dialled again
)

// A gathering is rank 0's side of the address exchange. Each rank's Conn has a
// goroutine; there is at most one per rank, and they end with the table sent.
type gathering struct {
	mu      sync.Mutex // guards the rest
	records []record
	here    []uint64 // the instance that is here as each rank; 0: none
	came    []bool   // a rank was here, and may have left again
	missing int
	failed  *refusal // set before over ends, unless the table is complete

	over context.Context // ends when the table is complete, or nobody waits any longer
	end  context.CancelFunc
	work sync.WaitGroup // the goroutines of serve; none is added after a failure
}

func newGathering(size int) *gathering {
	g := &gathering{records: make([]record, size), here: make([]uint64, size), came: make([]bool, size), missing: size}
	g.over, g.end = context.WithCancel(context.Background())
	return g
}

// enter takes a rank's record. A second process of the same rank is a refusal;
// the same one may come again, after a connection that broke.
func (g *gathering) enter(rank int, instance uint64, r record) *refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.here[rank] {
	case instance:
	case 0:
		g.missing--
	default:
		return &refusal{reason: reasonTaken, text: fmt.Sprintf("rank: another process has joined as rank %d, or this one by an Init before", rank)}
	}
	g.here[rank], g.came[rank], g.records[rank] = instance, true, r
	if g.missing == 0 {
		g.end()
	}
	return nil
}

// leave takes a rank out again whose connection broke before all had come.
func (g *gathering) leave(rank int, instance uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.missing > 0 && g.here[rank] == instance {
		g.here[rank] = 0
		g.missing++
	}
}

// fail ends the gathering without a table, and says so to those who have come;
// they have farewellTime to hear it.
func (g *gathering) fail() []int {
	absent := g.absent()
	g.mu.Lock()
	g.failed = &refusal{reason: reasonAbsent, text: fmt.Sprintf("rank 0 waited for all ranks to join; never came: %v", absent)}
	g.end()
	g.mu.Unlock()
	g.work.Wait()
	return absent
}

// begin counts one more goroutine; false when nobody is waited for any more.
func (g *gathering) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed == nil {
		g.work.Add(1)
	}
	return g.failed == nil
}

// absent are the ranks that have never come or, when there are none, those that
// have left again: they may just have run out of time before this rank.
func (g *gathering) absent() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	var never, left []int
	for r, instance := range g.here {
		switch {
		case !g.came[r]:
			never = append(never, r)
		case instance == 0:
			left = append(left, r)
		}
	}
	if never != nil {
		return never
	}
	return left
}

// outcome is the table, or why there is none. It is called after over has ended.
func (g *gathering) outcome() ([]record, *refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed == nil && g.missing > 0 {
		return nil, &refusal{reason: reasonGone, text: "rank 0 closes"}
	}
	return g.records, g.failed
}

// serve speaks with one rank until it has the table, or was turned down, which is
// the error. It closes the Conn.
func (g *gathering) serve(ctx context.Context, c transport.Conn, h hello) error {
	defer c.Close()
	if !g.begin() {
		return nil
	}
	defer g.work.Done()
	rank, t := int(h.rank), newTalk(c)
	first, cancel := context.WithTimeout(ctx, strangerTime)
	defer cancel()
	head, body, err := t.recv(first, maxRecord)
	if err != nil {
		return nil // it has gone
	}
	r, err := parseRecord(head, body)
	if err != nil {
		no := &refusal{reason: reasonMalformed, text: "join: a malformed record"}
		turnDown(first, t, no)
		return no
	}
	if no := g.enter(rank, h.instance, r); no != nil {
		turnDown(first, t, no)
		return no
	}
	if err := g.hold(ctx, t); err != nil {
		g.leave(rank, h.instance)
		return nil
	}
	g.tell(ctx, t)
	return nil
}

// hold waits for the outcome, and says now and then who is missing. An error
// says that the rank is gone.
func (g *gathering) hold(ctx context.Context, t *talk) error {
	for {
		wait, cancel := context.WithTimeout(g.over, joinTell)
		_, _, err := t.recv(wait, 0)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case g.over.Err() != nil:
			return nil
		case err == nil:
			return errMalformed // nothing is due
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		t.send(appendWait(nil, g.absent()))
	}
}

// tell sends the table, or why there is none, and waits until the rank has it.
func (g *gathering) tell(ctx context.Context, t *talk) {
	records, no := g.outcome()
	if no != nil {
		turnDown(ctx, t, no)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, strangerTime)
	defer cancel()
	for first := 0; ; {
		head, body, n := appendTable(nil, records, first)
		if first += n; first == len(records) {
			t.finish(ctx, head, body)
			return
		}
		t.send(head, body)
	}
}

// gather is rank 0's part: it waits until all ranks have come.
func (m *Mesh) gather(ctx context.Context, own record) ([]record, error) {
	g := m.gathering
	if no := g.enter(0, m.id.instance, own); no != nil {
		return nil, m.failure(fault.Refused, no) // cannot be: only rank 0 enters as 0
	}
	select {
	case <-g.over.Done():
	case <-ctx.Done():
		return nil, m.late(ctx, g.fail())
	case <-m.ctx.Done():
		return nil, m.failure(fault.Closed, nil)
	}
	records, _ := g.outcome()
	return records, nil
}

// late is the error of a start whose context ended before these ranks had come.
func (m *Mesh) late(ctx context.Context, missing []int) *fault.Error {
	e := m.failure(fault.Ending(ctx.Err()), fmt.Errorf("not all ranks have joined: %w", context.Cause(ctx)))
	for _, r := range missing {
		e.Peers = append(e.Peers, fault.Peer{Rank: r, Host: m.Host(r)})
	}
	return e
}

// join is every other rank's part: it gives its record to rank 0 and waits for
// the table. It tries again until ctx ends, unless it is turned down for good.
func (m *Mesh) join(ctx context.Context, own record) ([]record, error) {
	var last error
	var trouble int // attempts that were turned down for now, or cut off unheard
	for pause := joinFirst; ; pause = min(2*pause, joinLast) {
		records, err := m.joinOnce(ctx, own)
		var no *refusal
		switch {
		case err == nil:
			return records, nil
		case errors.As(err, &no) && no.reason == reasonAbsent:
			e := m.failure(fault.Timeout, no)
			for _, r := range m.awaited.said() {
				e.Peers = append(e.Peers, fault.Peer{Rank: r})
			}
			return nil, e
		case errors.As(err, &no) && no.final(m.id.incarnation):
			e := m.failure(fault.Refused, no)
			e.Peers = []fault.Peer{{Rank: 0}}
			return nil, e
		case hopeless(err):
			e := m.failure(fault.Refused, fmt.Errorf("rank 0 at %s: %w", m.cfg.Root, err))
			e.Peers = []fault.Peer{{Rank: 0}}
			return nil, e
		case ctx.Err() == nil || last == nil:
			last = explained(err) // rather the reason than that time was up
			m.awaited.set(func(a *awaited) { a.heard, a.trouble = false, last })
		}
		if no != nil || cutOff(err) {
			if trouble++; trouble == troubleTold {
				m.log.Warn(fmt.Sprintf("tutti: rank %d tries to join again and again: %v", m.cfg.Rank, last), "root", m.cfg.Root)
			}
		}
		select {
		case <-ctx.Done():
			return nil, m.unjoined(ctx, last)
		case <-m.ctx.Done():
			return nil, m.failure(fault.Closed, nil)
		case <-time.After(pause):
		}
	}
}

// troubleTold is at which attempt of that kind a rank says what keeps it: the first
// ones may meet a process of the job before, or a listener that is being flooded.
const troubleTold = 3

// cutOff reports whether the other side has ended the connection without a word.
func cutOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// explained is err with what mostly leads to it.
func explained(err error) error {
	if cutOff(err) {
		return fmt.Errorf("%w (who listens there takes another wire, so TUTTI_TRANSPORT and TLS must be equal on all ranks; or it is no rank of this job)", err)
	}
	return err
}

// hopeless reports whether trying again cannot help: a certificate that one side
// does not accept, or TLS options that cannot be.
func hopeless(err error) bool {
	var cert *tls.CertificateVerificationError
	var alert tls.AlertError
	return errors.As(err, &cert) || errors.As(err, &alert) || errors.Is(err, fault.Misuse)
}

// unjoined is the error of a rank whose context ended before it had the table.
func (m *Mesh) unjoined(ctx context.Context, last error) *fault.Error {
	if missing := m.awaited.said(); missing != nil {
		return m.late(ctx, missing)
	}
	e := m.late(ctx, []int{0})
	e.Err = fmt.Errorf("rank 0 could not be reached at %s: %w; %w", m.cfg.Root, last, context.Cause(ctx))
	return e
}

// joinOnce is one attempt. It notes who rank 0 says has not come.
func (m *Mesh) joinOnce(ctx context.Context, own record) ([]record, error) {
	c, err := m.cfg.Transport.Dial(ctx, m.cfg.Root)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t := newTalk(c)
	if err := m.introduce(ctx, t, 0, laneJoin); err != nil {
		return nil, err
	}
	m.awaited.set(func(a *awaited) { a.heard = true })
	t.send(appendRecordHead(nil), own.append(nil))
	var records []record
	for len(records) < m.cfg.Size {
		head, body, err := m.hear(ctx, t)
		if err != nil {
			return nil, err
		}
		switch kind, _, _ := kindOf(head); kind {
		case kindRefuse:
			no, err := parseRefusal(head, body)
			if err != nil {
				return nil, err
			}
			return nil, no
		case kindWait:
			missing, err := parseWait(head, body, m.cfg.Size)
			if err != nil {
				return nil, err
			}
			m.awaited.set(func(a *awaited) { a.ranks = missing })
		default:
			more, err := parseTable(head, body, len(records), m.cfg.Size)
			if err != nil {
				return nil, err
			}
			records = slices.Concat(records, more)
		}
	}
	return records, nil
}

// hear waits for rank 0's next word.
func (m *Mesh) hear(ctx context.Context, t *talk) (head, body []byte, err error) {
	idle, cancel := context.WithTimeout(ctx, joinIdle)
	defer cancel()
	return t.recv(idle, maxBody)
}
