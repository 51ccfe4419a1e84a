package mesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// connPair returns a dialled Conn and the accepted one at its other end.
func connPair(t *testing.T) (dialled, accepted transport.Conn) {
	t.Helper()
	hub := memory.New()
	a, b := hub.Transport(), hub.Transport()
	t.Cleanup(func() { a.Close(); b.Close() })
	conns := make(chan transport.Conn, 1)
	addr, err := b.Serve(nil, func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	if dialled, err = a.Dial(t.Context(), addr); err != nil {
		t.Fatal(err)
	}
	return dialled, <-conns
}

// runHandshake runs both sides of a handshake in which rank 1 dials rank 0, and returns their
// errors.
func runHandshake(t *testing.T, dialling, accepting identity) (errDial, errAccept error) {
	t.Helper()
	near, far := connPair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	done := make(chan error)
	go func() {
		w, err := dialling.dial(ctx, newHandshakeConn(near), 0, channelData, position{}, nil)
		if err == nil && w.instance != accepting.instance {
			t.Errorf("the welcome is from instance %x, want %x", w.instance, accepting.instance)
		}
		near.Close()
		done <- err
	}()
	conn := newHandshakeConn(far)
	g, errAccept := accepting.accept(ctx, conn, func() {})
	if errAccept == nil {
		conn.send(accepting.welcome(g, welcome{instance: accepting.instance}), nil)
	} else {
		far.Close()
	}
	return <-done, errAccept
}

func TestTheHandshakeNamesWhatDiffersAndBothValues(t *testing.T) {
	base := Config{Rank: 1, Size: 4, Job: "train", Incarnation: 3, Secret: []byte("sesame")}
	for _, tc := range []struct {
		name   string
		change func(dialling, accepting *Config)
		reason reason
		words  []string // words that both errors contain; empty: both sides succeed
	}{
		{"same", func(*Config, *Config) {}, 0, nil},
		{"no secrets", func(a, b *Config) { a.Secret, b.Secret = nil, nil }, 0, nil},
		{"sums on", func(a, b *Config) { a.BodySums, b.BodySums = true, true }, 0, nil},
		{"job", func(a, b *Config) { a.Job = "other" }, reasonJob, []string{"job", "116f54c4", "d9298a10"}},
		{"incarnation", func(a, b *Config) { a.Incarnation = 2 }, reasonIncarnation, []string{"incarnation", "rank 0 has 3", "rank 1 has 2"}},
		{"size", func(a, b *Config) { a.Size = 8 }, reasonSize, []string{"world size", "rank 0 has 4", "rank 1 has 8"}},
		{"rank", func(a, b *Config) { a.Rank = 4 }, reasonRank, []string{"rank", "got 4, want 0 to 3"}},
		{"addressee", func(a, b *Config) { b.Rank = 2 }, reasonAddressee, []string{"looks for rank 0", "found rank 2"}},
		{"own rank", func(a, b *Config) { a.Rank = 0 }, reasonRankInUse, []string{"two processes are rank 0"}},
		{"sums", func(a, b *Config) { a.BodySums = true }, reasonSums, []string{"body checksums", "rank 0 has them off", "rank 1 has them on"}},
		{"wrong secret", func(a, b *Config) { a.Secret = []byte("guess") }, reasonSecret, []string{"secret", "another secret"}},
		{"no secret there", func(a, b *Config) { a.Secret = nil }, reasonSecret, []string{"secret", "accepting rank has one", "dialling rank has none"}},
		{"no secret here", func(a, b *Config) { b.Secret = nil }, reasonSecret, []string{"secret", "accepting rank has none", "dialling rank has one"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := base, base
			b.Rank = 0
			tc.change(&a, &b)
			errDial, errAccept := runHandshake(t, newIdentity(a), newIdentity(b))
			for side, err := range map[string]error{"dialling": errDial, "accepting": errAccept} {
				var no *refusal
				if !errors.As(err, &no) {
					if err != nil || tc.words != nil {
						t.Errorf("the %s side: %v, want a refusal: %v", side, err, tc.words != nil)
					}
					continue
				}
				if no.reason != tc.reason {
					t.Errorf("the %s side: reason %d, want %d", side, no.reason, tc.reason)
				}
				for _, w := range tc.words {
					if !strings.Contains(no.text, w) {
						t.Errorf("the %s side says %q, without %q", side, no.text, w)
					}
				}
			}
		})
	}
}

// sendHello sends one hello as a peer, and reads the answer.
func sendHello(t *testing.T, accepting identity, head []byte) (answer *refusal, errAccept error) {
	t.Helper()
	near, far := connPair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	done := make(chan *refusal)
	go func() {
		conn := newHandshakeConn(near)
		conn.send(head, nil)
		head, body, _ := conn.recv(ctx, maxRefusal)
		near.Close()
		no, _ := parseRefusal(head, body)
		done <- no
	}()
	_, errAccept = accepting.accept(ctx, newHandshakeConn(far), func() {})
	far.Close()
	return <-done, errAccept
}

func TestOtherVersionsAndByteOrdersAreRefusedWithAReason(t *testing.T) {
	id := newIdentity(Config{Rank: 0, Size: 4, Job: "train"})
	h := hello{version: version, order: hostOrder(), channel: channelData, rank: 1, size: 4, job: id.job}
	for _, tc := range []struct {
		name   string
		change func(*hello)
		words  []string
	}{
		{"version", func(h *hello) { h.version = 7 }, []string{"protocol version", "speaks 3", "7"}},
		{"byte order", func(h *hello) { h.order = 'L' + 'B' - hostOrder() }, []string{"byte order", "little endian", "big endian"}},
		{"no byte order", func(h *hello) { h.order = 0 }, []string{"byte order", "unknown"}},
	} {
		h := h
		tc.change(&h)
		answer, err := sendHello(t, id, h.append(nil))
		for _, w := range tc.words {
			if answer == nil || !strings.Contains(answer.text, w) || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: there %v, here %v, without %q", tc.name, answer, err, w)
			}
		}
	}
}

func TestAVersionIsReadInAHelloOfAnotherLayout(t *testing.T) {
	id := newIdentity(Config{Rank: 0, Size: 4})
	head := append([]byte(magic), byte(kindHello), 0, 9, 0, 'x', 'y')
	if answer, err := sendHello(t, id, head); answer == nil || !strings.Contains(err.Error(), "9") {
		t.Errorf("there %v, here %v; want version 9 refused", answer, err)
	}
}

func TestMalformedHellosAreRefused(t *testing.T) {
	id := newIdentity(Config{Rank: 0, Size: 4, Secret: []byte("sesame")})
	h := hello{version: version, order: hostOrder(), channel: channelData, rank: 1, size: 4, job: id.job, options: optionSecret}
	good := h.append(nil)
	flipped := append([]byte(nil), good...)
	flipped[20] ^= 1
	h.channel = 9
	channel := h.append(nil)
	for name, head := range map[string][]byte{"flipped bit": flipped, "cut short": good[:40], "lane": channel} {
		if answer, err := sendHello(t, id, head); answer == nil || err == nil {
			t.Errorf("%s: there %v, here %v", name, answer, err)
		}
	}
	if answer, err := sendHello(t, id, []byte("something else")); answer != nil || !errors.Is(err, errUnknownProtocol) {
		t.Errorf("a stranger: there %v, here %v; want no answer", answer, err)
	}
}

// This test checks that a recorded proof is useless, because another nonce and the other side each
// require a different proof.
func TestProofsCannotBeUsedAgain(t *testing.T) {
	secret := []byte("sesame")
	h := hello{version: version, rank: 1}
	one := proof(secret, labelDial, h.append(nil), [nonceSize]byte{1}, welcome{})
	h2 := h
	h2.nonce[0] = 1
	h3 := h
	h3.rank = 2
	for name, other := range map[string][macSize]byte{
		"the other side":       proof(secret, labelAccept, h.append(nil), [nonceSize]byte{1}, welcome{}),
		"another nonce":        proof(secret, labelDial, h.append(nil), [nonceSize]byte{2}, welcome{}),
		"another hello nonce":  proof(secret, labelDial, h2.append(nil), [nonceSize]byte{1}, welcome{}),
		"another hello's rank": proof(secret, labelDial, h3.append(nil), [nonceSize]byte{1}, welcome{}),
		"another instance":     proof(secret, labelDial, h.append(nil), [nonceSize]byte{1}, welcome{instance: 1}),
		"another position":     proof(secret, labelDial, h.append(nil), [nonceSize]byte{1}, welcome{position: position{received: 1}}),
		"another secret":       proof([]byte("s"), labelDial, h.append(nil), [nonceSize]byte{1}, welcome{}),
	} {
		if one == other {
			t.Errorf("%s: the same proof", name)
		}
	}
}

// This test checks that a rank refuses an accepting rank that does not prove the secret.
func TestTheAcceptingSideMustProveItselfToo(t *testing.T) {
	id := newIdentity(Config{Rank: 1, Size: 4, Secret: []byte("sesame")})
	asks := appendChallenge(nil, [nonceSize]byte{1})
	for name, answers := range map[string][][]byte{
		"a welcome without a challenge": {(&welcome{instance: 1}).append(nil)},
		"a welcome without a proof":     {asks, (&welcome{instance: 1}).append(nil)},
		"two challenges":                {asks, asks},
		"something else":                {[]byte("HTTP/1.1 400 Bad Request")},
		"a cut challenge":               {asks[:20]},
	} {
		near, far := connPair(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			conn := newHandshakeConn(far)
			for _, answer := range answers {
				conn.recv(ctx, 0)
				conn.send(answer, nil)
			}
			conn.recv(ctx, 0) // sends the answer
		}()
		if _, err := id.dial(ctx, newHandshakeConn(near), 0, channelData, position{}, nil); err == nil || ctx.Err() != nil {
			t.Errorf("%s: got %v, want an error at once", name, err)
		}
		near.Close()
		<-ended
		far.Close()
		cancel()
	}
}

// A process that has not proven the secret must learn nothing about a rank, whatever its hello
// says: neither the rank, the size, the job nor the incarnation, and no HMAC against which it could
// try secrets.
func TestARefusalBeforeTheProofNamesNothing(t *testing.T) {
	id := newIdentity(Config{Rank: 654, Size: 987, Job: "train", Incarnation: 321, Secret: []byte("sesame")})
	fitting := hello{version: version, order: hostOrder(), channel: channelControl, options: optionSecret,
		incarnation: 321, rank: 1, size: 987, to: 654, job: id.job}
	for name, change := range map[string]func(*hello){
		"nothing":        func(*hello) {},
		"version":        func(h *hello) { h.version = 9 },
		"byte order":     func(h *hello) { h.order = 0 },
		"job":            func(h *hello) { h.job[0]++ },
		"incarnation":    func(h *hello) { h.incarnation = 1 },
		"size":           func(h *hello) { h.size = 2 },
		"rank":           func(h *hello) { h.rank = 5000 },
		"addressee":      func(h *hello) { h.to = 2 },
		"own rank":       func(h *hello) { h.rank = 654 },
		"body checksums": func(h *hello) { h.options |= optionSums },
		"no secret":      func(h *hello) { h.options = 0 },
	} {
		h := fitting
		change(&h)
		near, far := connPair(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		refused := make(chan error)
		go func() {
			_, err := id.accept(ctx, newHandshakeConn(far), func() {})
			far.Close()
			refused <- err
		}()
		conn := newHandshakeConn(near)
		conn.send(h.append(nil), nil)
		var answer []byte
		head, body, err := conn.recv(ctx, maxRefusal)
		if kind, _, _ := kindOf(head); kind == kindChallenge {
			if len(head) != prefixSize+nonceSize+sumSize || len(body) != 0 {
				t.Errorf("%s: a challenge of %d and %d bytes, want a nonce and nothing else", name, len(head), len(body))
			}
			conn.send(appendProof(nil, [macSize]byte{1}), nil)
			head, body, err = conn.recv(ctx, maxRefusal)
		}
		if answer = append(head, body...); err != nil || len(answer) == 0 {
			t.Errorf("%s: got no refusal: %v", name, err)
		}
		r, err := parseRefusal(head, body)
		if err != nil || r.theirs != 0 && r.reason != reasonVersion {
			t.Errorf("%s: got %+v, %v, want a refusal without a value", name, r, err)
		}
		for _, secret := range []string{"654", "987", "321", fmt.Sprintf("%x", id.job[:4])} {
			if bytes.Contains(answer, []byte(secret)) {
				t.Errorf("%s: the refusal %q says %q", name, body, secret)
			}
		}
		near.Close()
		if err := <-refused; err == nil {
			t.Errorf("%s: accepted", name)
		}
		cancel()
	}
}

// In a job without a secret, a process that was not given the table must not pass as any rank. The
// ranks of a job of 9 do not all have control links to each other, so without the table a rank
// would have to believe the first process.
func TestNobodyPosesAsARankWithoutAControlLink(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTestJob(t, 9)
		r.start(t.Context(), upTo(9), func(_ int, cfg *Config) { cfg.Secret = nil })
		defer r.close()
		wire := r.hub.Transport()
		defer wire.Close()
		for to, m := range r.meshes {
			for rank := range r.meshes {
				if rank == to {
					continue
				}
				cfg := r.config(rank)
				cfg.Secret = nil
				id := newIdentity(cfg)
				c, err := wire.Dial(t.Context(), r.hub.Addr(to))
				if err != nil {
					t.Fatal(err)
				}
				var no *refusal
				w, err := id.dial(t.Context(), newHandshakeConn(c), to, channelControl, position{}, nil)
				if !errors.As(err, &no) || w.instance == m.id.instance {
					t.Errorf("rank %d takes another process for rank %d: %v", to, rank, err)
				}
				c.Close()
			}
		}
	})
}

// A process that poses as a rank before the table has come must not stay in the job.
func TestATableUncoversWhoPosesAsARank(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTestJob(t, 3)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan struct{})
		go func() {
			r.start(ctx, []int{0, 1}, func(_ int, cfg *Config) { cfg.Secret = nil })
			close(done)
		}()
		synctest.Wait() // rank 1 waits for the table
		cfg := r.config(2)
		cfg.Secret = nil
		id := newIdentity(cfg)
		wire := r.hub.Transport()
		defer wire.Close()
		c, err := wire.Dial(t.Context(), r.hub.Addr(1))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := id.dial(t.Context(), newHandshakeConn(c), 1, channelControl, position{}, nil); err != nil {
			t.Fatal(err)
		}
		r.start(ctx, []int{2}, func(_ int, cfg *Config) { cfg.Secret = nil })
		<-done
		defer r.close()
		var e *fault.Error
		if err := r.errs[1]; !errors.As(err, &e) || !blames(e, fault.Refused, 2) || !strings.Contains(err.Error(), "another has opened a connection as rank 2") {
			t.Errorf("got %v, want that two processes run as rank 2", err)
		}
	})
}

func TestASilentPeerEndsTheHandshakeInTime(t *testing.T) {
	for _, secret := range []string{"", "sesame"} {
		bubble(t, func(t *testing.T) {
			id := newIdentity(Config{Rank: 1, Size: 2, Secret: []byte(secret)})
			near, far := connPair(t)
			ctx, cancel := context.WithTimeout(t.Context(), handshakeTimeout)
			defer cancel()
			start := time.Now()
			_, err := id.dial(ctx, newHandshakeConn(near), 0, channelData, position{}, nil)
			if elapsed := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || elapsed != handshakeTimeout {
				t.Errorf("dialling: %v after %v", err, elapsed)
			}
			start = time.Now()
			ctx, cancel = context.WithTimeout(t.Context(), handshakeTimeout)
			defer cancel()
			other := newIdentity(Config{Rank: 0, Size: 2, Secret: []byte(secret)})
			if _, err = other.accept(ctx, newHandshakeConn(far), func() {}); secret != "" && err == nil {
				t.Error("a hello without a proof is enough")
			}
			if elapsed := time.Since(start); elapsed > handshakeTimeout {
				t.Errorf("accepting: %v after %v", err, elapsed)
			}
		})
	}
}

func TestTheDialledRankRefusesWithReasons(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 3, nil)
		defer r.close()
		wire := r.hub.Transport()
		defer wire.Close()
		try := func(change func(*Config)) error {
			cfg := r.config(1)
			change(&cfg)
			id := newIdentity(cfg)
			c, err := wire.Dial(t.Context(), r.hub.Addr(0))
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = id.dial(t.Context(), newHandshakeConn(c), 0, channelControl, position{}, nil)
			return err
		}
		for name, change := range map[string]func(*Config){
			"another process has joined as rank 1": func(*Config) {},
			"secret":                               func(c *Config) { c.Secret = []byte("x") },
			"job":                                  func(c *Config) { c.Job = "x" },
		} {
			if err := try(change); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v, want %q", err, name)
			}
		}
		synctest.Wait()
		if got := len(r.logs.all()); got != 3 {
			t.Errorf("%d lines are logged, want 3: %q", got, r.logs.all())
		}
		r.meshes[2].Close(t.Context())
		// Reason: the goodbye of rank 2 arrives within this time. No real time passes.
		time.Sleep(time.Second)
		if err := try(func(c *Config) { c.Rank = 2 }); err == nil || !strings.Contains(err.Error(), "goodbye") {
			t.Errorf("got %v, want that rank 2 has closed", err)
		}
		for i := range 2 {
			if e, _ := r.events[i].first(); e != nil {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
	})
}

func TestARankJoinsOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTestJob(t, 3)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		done := make(chan struct{})
		go func() {
			r.start(ctx, []int{0, 1}, nil) // rank 2 never starts
			close(done)
		}()
		// Reason: ranks 0 and 1 wait for rank 2 by then. No real time passes.
		time.Sleep(time.Second)
		cfg := r.config(1)
		cfg.Transport = r.hub.Transport()
		start := time.Now()
		_, err := Start(ctx, cfg)
		if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "another process has joined as rank 1") {
			t.Errorf("the second rank 1: %v", err)
		}
		if elapsed := time.Since(start); elapsed > time.Second {
			t.Errorf("it took %v", elapsed)
		}
		synctest.Wait() // rank 0 has noticed that the second rank 1 left
		if got := r.logs.all(); len(got) != 1 || !strings.Contains(got[0], "another process has joined as rank 1") {
			t.Errorf("logged %q, want one line about it", got)
		}
		<-done
		for i := range 2 {
			var e *fault.Error
			if !errors.As(r.errs[i], &e) || !blames(e, fault.Timeout, 2) {
				t.Errorf("rank %d: %v", i, r.errs[i])
			}
		}
	})
}

func TestARankThatDiesWhileJoiningMayBeStartedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTestJob(t, 3)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		first := r.config(1)
		first.Transport = r.hub.Transport()
		done := make(chan struct{})
		go func() {
			r.start(t.Context(), []int{0}, nil)
			close(done)
		}()
		if _, err := Start(ctx, first); !errors.Is(err, fault.Timeout) {
			t.Errorf("the first rank 1: %v", err)
		}
		synctest.Wait() // rank 0 has noticed that the first rank 1 left
		r.start(t.Context(), []int{1, 2}, nil)
		<-done
		defer r.close()
		for i, err := range r.errs {
			if err != nil {
				t.Errorf("rank %d: %v", i, err)
			}
		}
	})
}

func TestARankWithAnotherSizeFailsAtOnceAndTheOthersWait(t *testing.T) {
	for _, list := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			r := newTestJob(t, 3)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			mode := func(_ int, cfg *Config) {
				if list {
					r.static(cfg)
				}
			}
			done := make(chan struct{})
			go func() {
				r.start(ctx, []int{0, 1, 2}, mode)
				close(done)
			}()
			misfit := r.config(0)
			mode(0, &misfit)
			misfit.Rank, misfit.Secret, misfit.Transport = 1, []byte("wrong"), r.hub.Transport()
			if list {
				misfit.Rank = 0 // so that this rank dials
			}
			start := time.Now()
			_, err := Start(ctx, misfit)
			if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "secret") || time.Since(start) > 2*time.Second {
				t.Errorf("list %v: the misfit: %v after %v", list, err, time.Since(start))
			}
			<-done
			defer r.close()
			for i, err := range r.errs {
				if err != nil {
					t.Errorf("list %v: rank %d: %v", list, i, err)
				}
			}
		})
	}
}

func TestAProcessOfTheLastIncarnationIsWaitedOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		old := newTestJob(t, 2)
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		deadline, giveUp := context.WithCancel(t.Context())
		go func() {
			// Rank 0 waits for rank 1 of its own incarnation. The rank 1 that dials belongs to the
			// next incarnation.
			old.start(ctx, []int{0}, nil)
			close(done)
		}()
		// Reason: rank 0 waits for rank 1 by then. No real time passes.
		time.Sleep(time.Second)
		next := old.config(1)
		next.Incarnation = 1
		got := make(chan error)
		go func() {
			_, err := Start(deadline, next)
			got <- err
		}()
		// Reason: the next incarnation must not give up within this time. No real time passes.
		time.Sleep(5 * time.Second)
		select {
		case err := <-got:
			t.Errorf("it gave up: %v", err)
		default:
		}
		cancel()
		<-done
		giveUp()
		if err := <-got; !errors.Is(err, fault.Canceled) || !strings.Contains(err.Error(), "incarnation") {
			t.Errorf("got %v, want its own cancellation, and what it waited for", err)
		}
	})
}

// Rank 0 must send nothing to a joining peer before the peer has sent its record, and must never
// send its instance to a joining peer. In a job without a secret, any process on the host may be
// that peer.
func TestAJoiningPeerIsWelcomedAfterItsRecord(t *testing.T) {
	for _, secret := range []string{"", "sesame"} {
		bubble(t, func(t *testing.T) {
			r := newTestJob(t, 3)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			root := make(chan struct{})
			go func() {
				r.start(ctx, []int{0}, func(_ int, cfg *Config) { cfg.Secret = []byte(secret) })
				close(root)
			}()
			synctest.Wait()
			cfg := r.config(1)
			cfg.Secret = []byte(secret)
			id := newIdentity(cfg)
			defer r.wires[1].Close()
			c, err := r.wires[1].Dial(t.Context(), r.hub.Addr(0))
			if err != nil {
				t.Fatal(err)
			}
			conn := newHandshakeConn(c)
			first, end := context.WithTimeout(t.Context(), time.Second)
			defer end()
			if w, err := id.dial(first, conn, 0, channelJoin, position{}, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("secret %q, without a record: instance %x, %v, want no answer", secret, w.instance, err)
			}
			conn.send(appendRecordHead(nil), record{addr: "x", host: "y", instance: id.instance}.append(nil))
			head, body, err := conn.recv(t.Context(), maxRefusal)
			if w, parseErr := parseWelcome(head, body); err != nil || parseErr != nil || w.instance != 0 {
				t.Errorf("secret %q, with a record: instance %x, %v, %v, want a welcome with instance 0", secret, w.instance, err, parseErr)
			}
			cancel()
			<-root
		})
	}
}
