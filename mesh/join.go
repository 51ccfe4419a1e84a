package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// The pace of the address exchange.
const (
	minJoinBackoff = time.Millisecond // the first pause between two dials of rank 0; each
	// pause is twice the last one
	maxJoinBackoff  = 500 * time.Millisecond // the longest pause between two dials of rank 0
	waitInterval    = time.Second            // between two WAIT frames of rank 0
	joinIdleTimeout = 10 * time.Second       // if rank 0 sends nothing for this long, it is dialled
	// again
)

// A joinServer is rank 0's side of the address exchange. One goroutine serves each joining rank's
// Conn. All of them end when the table has been sent. A rank has more than one Conn if it dialled
// again before rank 0 noticed that its last Conn broke. The newest Conn owns the rank's record:
// only the break of this Conn removes the rank.
//
//	rank r                  rank 0
//	RECORD    ->            add
//	          <-            WELCOME, without an instance
//	          <-            WAIT, once per waitInterval, while ranks are missing
//	          <-            TABLE, in one or more frames; or REFUSE, if ranks stay missing
//	REFUSE    ->            only if r reaches its deadline first; rank 0 then calls remove
//	          <-            WAIT, as the answer
//	closes    ->            the goroutine of r ends
//
// What the server knows of each rank:
//
//	records[r].instance  everJoined[r]  rank r
//	0                    no             has not joined
//	set                  yes            has joined, and waits for the table
//	0                    yes            had joined; its connection broke, and it may join again
//
// Its methods may be called by any goroutine; only fail and serve block.
type joinServer struct {
	endOnLoss bool                // the exchange ends if a rank leaves; set once
	exited    func(rank int) bool // Config.Exited; set once

	mu         sync.Mutex       // guards the rest
	records    []record         // by rank; instance 0: the rank has not joined
	owners     []*handshakeConn // by rank: the connection on which the record came; nil for rank 0
	everJoined []bool           // by rank: it has joined at some time
	gaveUp     []bool           // by rank: its deadline has ended, and it has not joined again
	missing    int
	failed     *refusal     // set before done ends, unless the table is complete
	exhausted  *fault.Error // set with failed, by end
	drained    bool         // drain has been called

	done   context.Context // ends when the table is complete, or joining has failed
	finish context.CancelFunc
	work   sync.WaitGroup // the goroutines of serve; no goroutine is added after drain
}

// newJoinServer returns a joinServer that waits for size ranks, this rank included.
func newJoinServer(size int) *joinServer {
	g := &joinServer{
		records: make([]record, size), owners: make([]*handshakeConn, size),
		everJoined: make([]bool, size), gaveUp: make([]bool, size), missing: size,
	}
	g.done, g.finish = context.WithCancel(context.Background())
	return g
}

// add records a rank, whose record came on the connection t. A second process of the same rank is
// refused. The same process may join again after its connection broke. Once the table is complete,
// the process must send the same record as before, because other ranks may have the table. When the
// last rank is added, the wait of all ranks ends.
func (g *joinServer) add(rank int, r record, t *handshakeConn) *refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch old := g.records[rank]; {
	case old.instance == r.instance:
		if g.missing == 0 && r != old {
			return &refusal{reason: reasonRankInUse, text: fmt.Sprintf("rank: rank %d has joined as %s on %s, and now joins as %s on %s", rank, old.addr, old.host, r.addr, r.host)}
		}
	case old.instance == 0:
		g.missing--
	default:
		return &refusal{reason: reasonRankInUse, text: fmt.Sprintf("rank: another process has joined as rank %d, or an earlier Init of this process; give each process its own rank", rank)}
	}
	g.everJoined[rank], g.gaveUp[rank], g.records[rank], g.owners[rank] = true, false, r, t
	if g.missing == 0 {
		g.finish()
	}
	return nil
}

// remove removes the record of a rank whose connection t broke before all ranks had joined. The
// rank's process may have died, and another process may be started in its place. If the rank has
// joined again on another connection, remove does nothing and returns nil. It does nothing once the
// table is complete, either, because other ranks may have the table.
//
// If endOnLoss is set, remove also ends the exchange, and the ranks that have joined get the
// reason: the rank has left. If the rank has left because its deadline has ended, the reason is the
// list of missing ranks instead.
func (g *joinServer) remove(rank int, t *handshakeConn, cause error) *earlyExit {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.missing == 0 || g.failed != nil || g.owners[rank] != t {
		return nil
	}
	g.records[rank].instance, g.owners[rank] = 0, nil
	g.missing++
	g.gaveUp[rank] = errors.Is(cause, errDeadlineEnded)
	e := &earlyExit{rank: rank, host: g.records[rank].host, final: g.endOnLoss, cause: cause}
	if g.endOnLoss {
		g.endForLocked(e)
	}
	return e
}

// endForLocked ends the exchange because a rank has left. The caller holds g.mu, and the exchange
// has not ended.
func (g *joinServer) endForLocked(e *earlyExit) {
	g.failed = &refusal{reason: reasonLeft, theirs: uint64(e.rank), text: e.Error()}
	if g.gaveUp[e.rank] {
		g.failed = refuseAbsent(e.rank, g.absentLocked())
	}
	g.finish()
}

// endForExit ends the exchange if the process of a rank is known to have ended. The launcher that
// has recorded the end starts no other process in its place.
func (g *joinServer) endForExit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.missing == 0 || g.failed != nil {
		return
	}
	for r := range g.records {
		if g.exited(r) {
			g.endForLocked(&earlyExit{rank: r, host: g.records[r].host, final: true, cause: errExited})
			return
		}
	}
}

// An earlyExit says that a rank has left before all ranks had joined.
type earlyExit struct {
	rank  int
	host  string
	final bool // the start fails because this rank has left
	cause error
}

// Error implements error.
func (e *earlyExit) Error() string {
	next := "; another process may join in its place"
	if e.final {
		next = ""
	}
	host := ""
	if e.host != "" {
		host = " on " + e.host
	}
	return fmt.Sprintf("rank %d%s has left before all ranks had joined: the rank's process or Init has ended (%v)%s", e.rank, host, e.cause, next)
}

// errDeadlineEnded is the error of a rank that has told rank 0 that its deadline has ended.
var errDeadlineEnded = errors.New("the rank's deadline has ended")

// errExited is the error of a rank whose end Config.Exited has reported.
var errExited = errors.New("the launcher has seen the rank's process end")

// refuseAbsent returns the refusal that ends the exchange at the deadline of a rank.
func refuseAbsent(rank int, absent []int) *refusal {
	return &refusal{reason: reasonAbsent, text: fmt.Sprintf("rank %d waited for all ranks to join; missing: %v", rank, absent)}
}

// fail ends the exchange without a table. It returns the list of missing ranks, and sends this list
// to the ranks that have joined. It waits up to refusalTimeout until they have read the list, so
// that all ranks report the same missing ranks.
func (g *joinServer) fail() []int {
	g.mu.Lock()
	absent := g.absentLocked()
	g.failed = refuseAbsent(0, absent)
	g.finish()
	g.mu.Unlock()
	g.drain()
	return absent
}

// drain waits until the ranks that have connected have the reason of a failure, up to
// refusalTimeout. Later connections get no answer.
func (g *joinServer) drain() {
	g.mu.Lock()
	g.drained = true
	g.mu.Unlock()
	g.work.Wait()
}

// awaitLate is called when the exchange has ended because a rank has left. If some ranks have not
// joined yet and may still come, awaitLate waits for abortTimeout. Ranks that connect in this time
// get the reason from serve. Ranks that connect later find rank 0 gone, and blame rank 0.
func (g *joinServer) awaitLate(ctx context.Context) {
	g.mu.Lock()
	late := false
	for r, joined := range g.everJoined {
		late = late || !joined && !(g.exited != nil && g.exited(r))
	}
	g.mu.Unlock()
	if late {
		select {
		case <-time.After(abortTimeout):
		case <-ctx.Done():
		}
	}
}

// end ends the exchange because this rank lacks file descriptors, so that no other rank can join.
// The ranks that have joined get the reason. It does nothing once the exchange has ended.
func (g *joinServer) end(e *fault.Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.missing == 0 || g.failed != nil {
		return
	}
	g.exhausted = e
	g.failed = &refusal{reason: reasonExhausted, text: fmt.Sprintf("rank 0: %v", e.Err)}
	g.finish()
}

// shortage returns the failure that end has recorded, or nil if the exchange did not end by end.
func (g *joinServer) shortage() *fault.Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.exhausted
}

// startConn adds a goroutine to g.work, so that drain waits for it. After drain, startConn returns
// false, and the goroutine must not start.
func (g *joinServer) startConn() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.drained {
		g.work.Add(1)
	}
	return !g.drained
}

// failure returns the refusal with which joining has failed, or nil if it has not failed.
func (g *joinServer) failure() *refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

// absentRanks returns the ranks that have never joined. If every rank has joined at some time, it
// returns the ranks whose connections broke afterwards. While a rank has never joined, absentRanks
// leaves out the ranks that have left, because they may only have reached their deadlines earlier
// than this rank.
func (g *joinServer) absentRanks() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.absentLocked()
}

// absentLocked is absentRanks for a caller that holds g.mu.
func (g *joinServer) absentLocked() []int {
	var never, left []int
	for r := range g.records {
		switch {
		case !g.everJoined[r]:
			never = append(never, r)
		case g.records[r].instance == 0:
			left = append(left, r)
		}
	}
	if never != nil {
		return never
	}
	return left
}

// outcome returns the table, or the reason why there is no table. The caller has waited until
// g.done has ended. The caller owns the table.
func (g *joinServer) outcome() ([]record, *refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed == nil && g.missing > 0 {
		return nil, &refusal{reason: reasonGone, text: "rank 0 is closing"}
	}
	return slices.Clone(g.records), g.failed
}

// serve handles one rank's connection until the rank has the table or is refused. It returns the
// refusal as its error, or an *earlyExit when a rank that had joined has left. A connection that
// breaks before the rank has joined is not an error, because the rank dials again until its own
// deadline. serve closes the Conn.
//
// serve sends the given welcome after it has received the record. The welcome does not contain the
// instance of rank 0, because in a job without a secret, a process that knew this instance could
// pose as rank 0. The rank gets all instances with the table.
func (g *joinServer) serve(ctx context.Context, t *handshakeConn, h hello, welcome []byte) error {
	defer t.conn.Close()
	if !g.startConn() {
		return nil
	}
	defer g.work.Done()
	rank := int(h.rank)
	first, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	defer context.AfterFunc(g.done, func() {
		if g.failure() != nil {
			cancel() // drain waits for this goroutine
		}
	})()
	head, body, err := t.recv(first, maxRecord)
	if no := g.failure(); no != nil {
		refuse(ctx, t, no)
		return nil
	}
	if err != nil {
		return nil // the peer has closed; it may dial again
	}
	r, err := parseRecord(head, body)
	if err != nil || r.instance != h.instance || r.instance == 0 {
		no := &refusal{reason: reasonMalformed, text: "join: a malformed record"}
		refuse(first, t, no)
		return no
	}
	if no := g.add(rank, r, t); no != nil {
		refuse(first, t, no)
		return no
	}
	admit(t.conn)
	t.send(welcome, nil)
	if err := g.waitForAll(ctx, t); err != nil {
		absent := g.absentRanks() // taken before remove, so it does not name the rank that leaves
		left := g.remove(rank, t, err)
		if errors.Is(err, errDeadlineEnded) {
			t.send(appendWait(nil, absent))
			refuse(ctx, t, refuseAbsent(rank, absent))
		}
		if left != nil && ctx.Err() == nil {
			return left
		}
		return nil
	}
	g.sendOutcome(ctx, t)
	return nil
}

// waitForAll waits for the outcome. Once per waitInterval it sends the list of missing ranks, so
// that the joining rank can name them if it gives up. Meanwhile it reads the Conn. The joining rank
// has nothing to send but a REFUSE at its deadline. waitForAll returns an error if the rank has
// left: errDeadlineEnded after a REFUSE, or why the connection broke.
func (g *joinServer) waitForAll(ctx context.Context, t *handshakeConn) error {
	for {
		wait, cancel := context.WithTimeout(g.done, waitInterval)
		head, body, err := t.recv(wait, maxRefusal)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case g.done.Err() != nil:
			return nil
		case err == nil:
			if no, err := parseRefusal(head, body); err == nil && no.reason == reasonAbsent {
				return errDeadlineEnded
			}
			return errMalformed
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		t.send(appendWait(nil, g.absentRanks()))
	}
}

// sendOutcome sends the table or, if there is none, the refusal. It waits until the rank has read
// everything, because rank 0 may exit right afterwards and the last frames must not be lost.
func (g *joinServer) sendOutcome(ctx context.Context, t *handshakeConn) {
	records, no := g.outcome()
	if no != nil {
		if no.reason == reasonAbsent {
			t.send(appendWait(nil, g.absentRanks())) // the ranks that the receiver then blames
		}
		refuse(ctx, t, no)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
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

// gatherRecords does rank 0's part of the exchange. It adds its own record and waits until all
// ranks have joined. If ctx ends first, it sends the reason to the ranks that have joined.
func (m *Mesh) gatherRecords(ctx context.Context, own record) ([]record, error) {
	g := m.joinServer
	if no := g.add(0, own, nil); no != nil {
		return nil, m.failure(fault.Refused, no) // cannot happen: only this process adds itself as rank 0
	}
	var look <-chan time.Time // ticks when g.exited must be asked; nil: there is no g.exited
	if g.exited != nil {
		t := time.NewTicker(m.cfg.Heartbeat)
		defer t.Stop()
		look = t.C
	}
	for g.done.Err() == nil {
		select {
		case <-g.done.Done():
		case <-look:
			g.endForExit()
		case <-ctx.Done():
			return nil, m.startTimeout(ctx, g.fail())
		case <-m.ctx.Done():
			return nil, m.failure(fault.Closed, nil)
		}
	}
	records, no := g.outcome()
	if no != nil {
		if no.reason == reasonLeft {
			g.awaitLate(ctx)
		}
		g.drain()
		if e := g.shortage(); e != nil {
			return nil, e
		}
		if no.reason == reasonAbsent {
			return nil, m.ranksAbsent(no, g.absentRanks())
		}
		return nil, m.rankLeft(no)
	}
	return records, nil
}

// rankLeft returns the error of a start that has failed because a rank has left.
func (m *Mesh) rankLeft(no *refusal) *fault.Error {
	e := m.failure(fault.PeerLost, no)
	if no.theirs < uint64(m.cfg.Size) {
		e.Peers = []fault.Peer{{Rank: int(no.theirs), Host: m.Host(int(no.theirs))}}
	}
	return e
}

// ranksAbsent returns the error of a start that has failed because another rank has reached its
// deadline. It blames the missing ranks.
func (m *Mesh) ranksAbsent(no *refusal, missing []int) *fault.Error {
	e := m.failure(fault.Timeout, no)
	for _, r := range missing {
		e.Peers = append(e.Peers, fault.Peer{Rank: r, Host: m.Host(r)})
	}
	return e
}

// startTimeout returns the error of a start whose context ended while ranks were missing. The
// error's Peers are the missing ranks, so that a launcher or a user sees which processes to
// examine.
func (m *Mesh) startTimeout(ctx context.Context, missing []int) *fault.Error {
	e := m.failure(fault.ContextKind(ctx.Err()), fmt.Errorf("not all ranks have joined: %w", context.Cause(ctx)))
	for _, r := range missing {
		e.Peers = append(e.Peers, fault.Peer{Rank: r, Host: m.Host(r)})
	}
	return e
}

// join does the part of every rank except rank 0. It sends its record to rank 0 and waits for the
// table. It retries until ctx ends, unless the failure is permanent:
//
//	attempt failed by                   join
//	refusal, absent ranks               fails with Timeout, naming the missing ranks
//	refusal, a rank has left            fails with PeerLost, naming that rank
//	rank 0 has left, with EndOnLoss     fails with PeerLost, naming rank 0
//	rank 0 is known to have exited      fails with PeerLost, naming rank 0
//	refusal, rank 0 lacks descriptors   fails with Exhausted, naming rank 0
//	refusal that is permanent           fails with Refused
//	no file descriptor is left          fails with Exhausted, also if Accept lacks one
//	certificate of rank 0, TLS options  fails with Refused
//	anything else                       retries with growing pauses; the report has the error
//
// Rank 0 need not run yet, because ranks may be started in any order, minutes apart.
func (m *Mesh) join(ctx context.Context, own record) ([]record, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	m.progress.update(func(a *startProgress) { a.endJoin = end })
	var last error
	var rejected int // attempts that rank 0 has refused, closed without an answer, or ended with a
	// TLS alert
	for pause := minJoinBackoff; ; pause = min(2*pause, maxJoinBackoff) {
		records, err := m.joinOnce(ctx, own)
		var no *refusal
		var left *earlyExit
		if errors.As(err, &left) && ctx.Err() == nil && m.ctx.Err() == nil {
			m.log.Warn("tutti: " + left.Error())
		}
		switch {
		case err == nil:
			return records, nil
		case errors.As(err, &no) && no.reason == reasonAbsent:
			return nil, m.ranksAbsent(no, m.progress.missingRanks())
		case errors.As(err, &no) && no.reason == reasonLeft:
			return nil, m.rankLeft(no)
		case errors.As(err, &no) && no.reason == reasonExhausted:
			e := m.failure(fault.Exhausted, no)
			e.Peers = []fault.Peer{{Rank: 0}}
			return nil, e
		case left != nil && left.final:
			return nil, m.rankLeft(&refusal{reason: reasonLeft, text: left.Error()})
		case errors.As(err, &no) && no.permanent(m.id.incarnation):
			e := m.failure(fault.Refused, no)
			e.Peers = []fault.Peer{{Rank: 0}}
			return nil, e
		case lacksDescriptors(err):
			return nil, m.shortage(err)
		case cannotSucceed(err):
			e := m.failure(fault.Refused, fmt.Errorf("rank 0 at %s: %w", m.cfg.Root, err))
			e.Peers = []fault.Peer{{Rank: 0}}
			return nil, e
		case m.cfg.hasExited(0):
			left = &earlyExit{rank: 0, host: m.cfg.Root, final: true, cause: errExited}
			return nil, m.rankLeft(&refusal{reason: reasonLeft, text: left.Error()})
		case ctx.Err() == nil || last == nil:
			last = m.withRemedy(err) // report the reason rather than the end of ctx
			m.progress.update(func(a *startProgress) { a.rootAnswered, a.lastErr = false, last })
		}
		if no != nil || closedByPeer(err) || certificateRefused(err) {
			if rejected++; rejected == warnAttempt {
				m.log.Warn(fmt.Sprintf("tutti: rank %d keeps retrying to join: %v", m.cfg.Rank, last), "root", m.cfg.Root)
			}
		}
		select {
		case <-ctx.Done():
			var short *fault.Error
			if errors.As(context.Cause(ctx), &short) {
				return nil, short
			}
			return nil, m.joinTimeout(ctx, last)
		case <-m.ctx.Done():
			return nil, m.failure(fault.Closed, nil)
		case <-time.After(pause):
		}
	}
}

// warnAttempt is the number of rejected attempts after which a rank logs the reason. Fewer
// rejections are normal: a process of the previous incarnation may still be listening, or the
// listener may have no free slot.
const warnAttempt = 3

// closedByPeer reports whether the peer has closed the connection without an answer. A mux without
// a free slot does that, and so does a server of another protocol.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// certificateRefused reports whether the peer has ended TLS with an alert. Under TLS 1.3 an
// accepting rank checks the certificate of the dialling rank after the dialling rank has ended its
// handshake. The refusal may be temporary: a process of the previous incarnation may still be
// listening.
func certificateRefused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// withRemedy adds the usual cause and the remedy to the text of err.
func (m *Mesh) withRemedy(err error) error {
	if certificateRefused(err) {
		return fmt.Errorf("%w: rank 0 ended the TLS handshake, usually because it does not accept the certificate of this rank; start all ranks with one launcher, with the same secret, or with certificates of one CA, and set the same TUTTI_TRANSPORT on all ranks", err)
	}
	if closedByPeer(err) {
		return fmt.Errorf("%w: the listener at %s closed the connection; check that this is the address of rank 0, and set the same TUTTI_TRANSPORT and TLS options on all ranks", err, m.cfg.Root)
	}
	return err
}

// cannotSucceed reports whether a retry is useless: this rank does not accept the peer's
// certificate, or the TLS options are wrong. If the peer refuses this rank's certificate, a retry
// may succeed; see certificateRefused.
func cannotSucceed(err error) bool {
	var cert *tls.CertificateVerificationError
	return errors.As(err, &cert) || errors.Is(err, fault.Misuse)
}

// joinTimeout returns the error of a rank whose context ended before it had the table. It blames
// the ranks that rank 0 reported as missing. If rank 0 never answered, it blames rank 0, with the
// last error of dialling rank 0.
func (m *Mesh) joinTimeout(ctx context.Context, last error) *fault.Error {
	if missing := m.progress.missingRanks(); missing != nil {
		return m.startTimeout(ctx, missing)
	}
	e := m.startTimeout(ctx, []int{0})
	e.Err = fmt.Errorf("rank 0 could not be reached at %s: %w; %w", m.cfg.Root, last, context.Cause(ctx))
	return e
}

// joinOnce makes one attempt to join. It dials rank 0, does the handshake, sends the record, and
// reads WAIT frames until the whole TABLE has come. It records the ranks that rank 0 reports as
// missing.
func (m *Mesh) joinOnce(ctx context.Context, own record) ([]record, error) {
	c, err := m.cfg.Transport.Dial(ctx, m.cfg.Root)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t := newHandshakeConn(c)
	sendRecord := func() { t.send(appendRecordHead(nil), own.append(nil)) }
	if _, err := m.handshake(ctx, t, 0, channelJoin, sendRecord); err != nil {
		return nil, err
	}
	m.progress.update(func(a *startProgress) { a.rootAnswered = true })
	var records []record
	for len(records) < m.cfg.Size {
		head, body, err := m.recvFromRoot(ctx, t)
		if closedByPeer(err) { // rank 0 has welcomed this rank, so it has joined the job and left
			return nil, &earlyExit{rank: 0, host: m.cfg.Root, final: m.cfg.EndOnLoss, cause: err}
		}
		if err != nil {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				m.reportDeadline(t)
			}
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
			m.progress.update(func(a *startProgress) { a.missing = missing })
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

// reportDeadline tells rank 0 that the deadline of this rank has ended. Then the other ranks blame
// the missing ranks, and not this rank. reportDeadline waits up to abortTimeout for rank 0's
// answer: a WAIT with the missing ranks, and a REFUSE. A WAIT that rank 0 had sent before is no
// answer. If this rank closed the Conn at once, the REFUSE could be lost.
func (m *Mesh) reportDeadline(t *handshakeConn) {
	ctx, cancel := context.WithTimeout(m.ctx, abortTimeout)
	defer cancel()
	t.send(refuseAbsent(m.cfg.Rank, m.progress.missingRanks()).append(nil))
	for {
		head, body, err := t.recv(ctx, maxBody)
		if err != nil {
			return
		}
		missing, err := parseWait(head, body, m.cfg.Size)
		if err != nil {
			return // the REFUSE
		}
		m.progress.update(func(a *startProgress) { a.missing = missing })
	}
}

// recvFromRoot waits at most joinIdleTimeout for rank 0's next frame. Rank 0 sends one frame per
// waitInterval, so a longer silence means that rank 0 or the connection is gone.
func (m *Mesh) recvFromRoot(ctx context.Context, t *handshakeConn) (head, body []byte, err error) {
	idle, cancel := context.WithTimeout(ctx, joinIdleTimeout)
	defer cancel()
	return t.recv(idle, maxBody)
}
