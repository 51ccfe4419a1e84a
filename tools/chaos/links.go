//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/internal/test/relay"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/grpc"
	"github.com/tutti-go/tutti/transport/tcp"
)

// A links is the transport of a rank that dials the other ranks through relays, one per address.
type links struct {
	transport.Transport
	in   *instruction
	lied atomic.Bool // a relay has altered the trial's frame

	mu     sync.Mutex // guards the fields below
	relays map[string]*relay.Relay
	conns  []*conn
	cutOff map[int]time.Time // by rank: connections to it are reset until this time
}

// newLinks returns the transport of a rank.
func newLinks(in *instruction) *links {
	l := &links{in: in, relays: make(map[string]*relay.Relay), cutOff: make(map[int]time.Time)}
	if in.Wire == grpc.Name {
		l.Transport = grpc.New(grpc.Options{})
	} else {
		l.Transport = tcp.New(tcp.Options{})
	}
	return l
}

// Name returns a name that is not built into comm, so that comm uses this transport.
func (l *links) Name() string { return "relayed" }

// Dial dials through the relay to the address.
func (l *links) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	l.mu.Lock()
	r := l.relays[addr]
	if r == nil {
		var err error
		r, err = relay.New(addr, func(int) (up, down relay.Filter) { return l.filters(func() { l.cut(addr) }) })
		if err != nil {
			l.mu.Unlock()
			return nil, err
		}
		l.relays[addr] = r
	}
	l.mu.Unlock()
	return l.Transport.Dial(ctx, r.Addr())
}

// cut cuts the connections to an address. The caller holds mu.
func (l *links) cut(addr string) {
	if r := l.relays[addr]; r != nil {
		r.Cut()
	}
}

// close closes the relays.
func (l *links) close() {
	l.mu.Lock()
	relays := l.relays
	l.relays = make(map[string]*relay.Relay)
	l.mu.Unlock()
	for _, r := range relays {
		r.Close()
	}
}

// carryOut carries out a command about the connections that this rank has dialled.
func (l *links) carryOut(c command) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Do == "cut" {
		l.cutOff[c.To] = time.Now().Add(c.For)
	}
	for _, conn := range l.conns {
		if int(conn.peer.Load()) != c.To {
			continue
		}
		switch c.Do {
		case "cut":
			conn.cut()
		case "hold":
			conn.heldUntil.Store(time.Now().Add(c.For).UnixNano())
		case "silence":
			if conn.data.Load() {
				conn.silent.Store(true)
			}
		}
	}
}

// A conn is a connection through a relay. The hello that the dialling rank sends first tells it
// what the connection is for.
type conn struct {
	cut   func()
	first []byte       // the bytes received before the hello is complete; owned by the Filter up
	peer  atomic.Int32 // the rank that is dialled; -1 before the hello
	data  atomic.Bool  // the hello has said that this is a data connection

	silent    atomic.Bool
	heldUntil atomic.Int64 // in ns
}

// filters registers a new connection, and returns the Filters of its two directions. The Filters
// carry out the commands about the connection.
func (l *links) filters(cut func()) (up, down relay.Filter) {
	c := &conn{cut: cut}
	c.peer.Store(-1)
	l.mu.Lock()
	l.conns = append(l.conns, c)
	l.mu.Unlock()
	lieUp, lieDown := l.lies(c, true), l.lies(c, false)
	up = func(p []byte) []byte {
		c.identify(p)
		if l.resets(c) {
			return nil
		}
		return c.pass(p, lieUp)
	}
	return up, func(p []byte) []byte { return c.pass(p, lieDown) }
}

// resets resets the connection if its peer is cut off, and reports whether the peer is.
func (l *links) resets(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !time.Now().Before(l.cutOff[int(c.peer.Load())]) {
		return false
	}
	c.cut()
	return true
}

// pass returns the bytes to forward in place of p.
func (c *conn) pass(p []byte, lie relay.Filter) []byte {
	time.Sleep(time.Until(time.Unix(0, c.heldUntil.Load())))
	switch {
	case c.silent.Load():
		return nil
	case lie != nil:
		return lie(p)
	}
	return p
}

// The layout of the hello that begins each connection, counted from its first byte; see package
// mesh.
const (
	helloStart = "tuti\x01\x00"
	channelAt  = 9
	peerAt     = 24
	helloSize  = 84

	dataChannel     = 2
	handshakeFrames = 2 // frames of the handshake in each direction
)

// identify reads the peer and the channel of the connection from the hello. The parameter p holds
// bytes of the dialling side.
func (c *conn) identify(p []byte) {
	if c.peer.Load() >= 0 {
		return
	}
	c.first = append(c.first, p...)
	at := bytes.Index(c.first, []byte(helloStart))
	if at < 0 || len(c.first) < at+helloSize {
		return
	}
	hello := c.first[at:]
	c.data.Store(hello[channelAt] == dataChannel)
	c.peer.Store(int32(binary.LittleEndian.Uint32(hello[peerAt:])))
}

// lies returns the Filter that alters one frame between the trial's two ranks. It returns nil if
// the trial alters no frame in this direction.
func (l *links) lies(c *conn, up bool) relay.Filter {
	if l.in.Lie == "" || up != l.in.Up {
		return nil
	}
	framing := relay.TCP(up)
	if l.in.Wire == grpc.Name {
		framing = relay.HTTP2(up)
	}
	counts, n, k := framing.Counts, 0, handshakeFrames+l.in.Frame
	framing.Counts = func(frame []byte) bool {
		if !c.data.Load() || !l.isEnd(int(c.peer.Load())) || counts != nil && !counts(frame) {
			return false
		}
		if n == k && !l.lied.CompareAndSwap(false, true) {
			return false // a trial alters one frame, even if the link is opened again
		}
		if n == k {
			event{Name: "altered"}.write()
		}
		n++
		return true
	}
	return framing.Alter(l.in.Lie, k)
}

// isEnd reports whether this rank and the peer are the two ends of the trial's link.
func (l *links) isEnd(peer int) bool {
	me := thisRank()
	return me == l.in.Victim && peer == l.in.Other || me == l.in.Other && peer == l.in.Victim
}
