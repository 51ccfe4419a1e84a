package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tutti-go/tutti/transport"
)

// redialAttempt bounds one attempt to open a broken link again. Within one attempt, the kernel
// repeats its packets after longer and longer pauses. A new attempt starts with short pauses, so a
// path that works again is found soon.
const redialAttempt = 2 * time.Second

// replay returns the link's replayConn, or nil if the link is not up yet or cannot be opened again.
func (l *Link) replay() *replayConn {
	r, _ := l.Conn().(*replayConn)
	return r
}

// wire returns the Conn that is open now. It returns nil while there is none.
func (l *Link) wire() transport.Conn {
	c := l.Conn()
	if r, ok := c.(*replayConn); ok {
		if w := r.wire.Load(); w != nil {
			return w.Conn
		}
		return nil
	}
	return c
}

// proposal returns this rank's position for a hello on the Conn c. While this rank dials, the link
// has no Conn, and nothing arrives until the next Conn is installed. So the position cannot change.
// The result dialling is false if the peer's dial was faster, or the link has failed. Frames may
// then arrive on the peer's Conn, so the caller must not send the position.
func (l *Link) proposal(c transport.Conn) (p position, dialling bool) {
	if l.m.cfg.Redial == 0 || canReplay(c) == nil {
		return position{}, true
	}
	l.mu.Lock()
	p, dialling = position{epoch: l.epoch + 1, after: l.epoch}, l.state == linkDialing
	l.mu.Unlock()
	return l.fill(p), dialling
}

// answer returns this rank's position for a welcome on the Conn c, which mayAcceptData has
// accepted. It closes the link's last Conn, because this rank may not have noticed that it broke.
// It reads the epoch first, so that the position is void if another Conn comes up meanwhile.
func (l *Link) answer(c transport.Conn, proposed uint32) position {
	if l.m.cfg.Redial == 0 || canReplay(c) == nil || proposed == 0 {
		return position{}
	}
	l.mu.Lock()
	p := position{epoch: max(proposed, l.epoch+1), after: l.epoch}
	l.mu.Unlock()
	if r := l.replay(); r != nil {
		r.drop()
	}
	return l.fill(p)
}

// fill returns p with the number of frames that have arrived.
func (l *Link) fill(p position) position {
	if r := l.replay(); r != nil {
		l.quiesce()
		p.received = r.received.Load()
	}
	return p
}

// reopen begins to dial a link again whose Conn has failed. It returns false if the link must fail.
func (l *Link) reopen(cause error) bool {
	r := l.replay()
	if r == nil {
		return false
	}
	l.mu.Lock()
	if state := l.state; state != linkUp || r.wire.Load() != nil {
		l.mu.Unlock()
		return state != linkFailed // another goroutine, or the peer, opens it or has opened it
	}
	l.beginOutage(r)
	l.state = linkDialing
	l.spawnRedial(cause)
	l.mu.Unlock()
	l.m.refusals.Line(slog.LevelInfo, "a data connection broke; dialling again", "peer", l.Rank, "err", cause)
	return true
}

// spawnRedial starts to dial, until Config.Redial after the break. l.mu is held.
func (l *Link) spawnRedial(cause error) {
	epoch, deadline := l.epoch, l.outage.Add(l.m.cfg.Redial)
	l.m.links.spawn(func(ctx context.Context) { l.redial(ctx, epoch, deadline, cause) })
}

// beginOutage records when the link broke, unless the link was opened again before and has
// delivered nothing since. l.mu is held.
func (l *Link) beginOutage(r *replayConn) {
	if !r.isStuck() {
		l.outage = time.Now()
	}
}

// failStalled fails a link because nothing arrives on its Conn c, or opens the link again. A link
// that was opened again and delivers nothing again is not dialled a third time. If another Conn has
// come up meanwhile, failStalled does nothing.
func (l *Link) failStalled(c transport.Conn, err error) {
	r := l.replay()
	if r == nil {
		l.failAfterReport(err)
		return
	}
	w := r.wire.Load()
	switch stuck := r.isStuck(); {
	case w == nil || w.Conn != c || w != r.wire.Load():
	case stuck:
		l.failAfterReport(err)
	case r.wire.CompareAndSwap(w, nil):
		w.Close()
		if !l.reopen(err) {
			l.fail(err)
		}
	}
}

// redial dials a broken link until a Conn is up, this rank's or the peer's, or the deadline has
// passed. A peer that has marked this rank dead, or has closed, refuses. A rank that is known to be
// dead is not dialled. In contrast to dial, redial goes on after a refused connection, because the
// control links show whether the peer's process is dead.
func (l *Link) redial(ctx context.Context, epoch uint32, deadline time.Time, cause error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for pause := minRedialBackoff; ; pause = min(2*pause, maxRedialBackoff) {
		attempt, end := context.WithTimeout(ctx, redialAttempt)
		c, peer, err := l.dialOnce(attempt)
		end()
		if err == nil {
			l.install(c, linkDialing, peer)
			return
		}
		final := isFinal(err)
		late := !final && !sleep(ctx, pause)
		switch {
		case !l.isDialing(epoch):
			return
		case final:
			l.fail(fmt.Errorf("%w; the link could not be opened again: %w", cause, err))
			return
		case late:
			l.fail(fmt.Errorf("%w; the link could not be opened again within %v: %w", cause, l.m.cfg.Redial, err))
			return
		}
	}
}

// errStale is the error of a position that is out of date: after the peer had sent it, the peer
// received more frames on another Conn. This rank closes the Conn and dials again.
var errStale = errors.New("the peer's position is out of date")

// errNoReplay is the error of a link that was dialled again after a break, if the peer answers with
// epoch 0. Such a peer does not open the link again.
var errNoReplay = errors.New("the peer does not open this link again")
