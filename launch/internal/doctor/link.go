package doctor

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A connection between probes begins with the run's token, which the listening probe answers with
// one byte. Messages follow. A message is its size in four bytes, big-endian, and that many bytes
// of any content. The listening probe answers each message with one byte when it has read all of
// it.
const (
	largeMessage = 256 << 10 // does not fit into one packet of any network
	smallMessage = 64
	maxConns     = 64
	connLimit    = 30 * time.Second
	stepLimit    = 5 * time.Second        // of each step of a dial: connect, token, message
	measureTime  = 200 * time.Millisecond // how long latency is measured, and how long bandwidth is
	maxRounds    = 200
	acceptPause  = 10 * time.Millisecond
	window       = 8 // how many large messages may wait for their answers
)

const acknowledged = 'k'

// serveConns accepts connections until ctx ends, which also ends the connections.
func serveConns(ctx context.Context, l net.Listener, token string) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	slots := make(chan struct{}, maxConns)
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		slots <- struct{}{}
		c, err := l.Accept()
		if err != nil && ctx.Err() == nil {
			<-slots
			time.Sleep(acceptPause) // the probe has no descriptor left, or the connection has gone
			continue
		}
		if err != nil {
			return
		}
		conns.Go(func() {
			stop := context.AfterFunc(ctx, func() { c.Close() })
			serveConn(c, token)
			stop()
			c.Close()
			<-slots
		})
	}
}

// serveConn answers the messages of one connection. A connection without the token gets no answer.
func serveConn(c net.Conn, token string) {
	c.SetDeadline(time.Now().Add(stepLimit))
	got := make([]byte, len(token))
	if _, err := io.ReadFull(c, got); err != nil || subtle.ConstantTimeCompare(got, []byte(token)) != 1 {
		return
	}
	c.SetDeadline(time.Now().Add(connLimit))
	in := bufio.NewReader(c)
	for {
		if _, err := c.Write([]byte{acknowledged}); err != nil {
			return
		}
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(size[:])
		if n > largeMessage {
			return
		}
		if _, err := io.CopyN(io.Discard, in, int64(n)); err != nil {
			return
		}
	}
}

// A caller is the dialling end of a connection.
type caller struct {
	conn net.Conn
	in   *bufio.Reader
	stop func() bool // ends the watch of the context
}

// close closes the connection.
func (c *caller) close() {
	c.stop()
	c.conn.Close()
}

// dial connects to the probe that listens at address, and sends the token. The trouble is "" if the
// probe has accepted the token.
func dial(ctx context.Context, address, token string) (c *caller, trouble string, err error) {
	d := net.Dialer{Timeout: stepLimit}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, dialTrouble(err), err
	}
	c = &caller{conn: conn, in: bufio.NewReader(conn), stop: context.AfterFunc(ctx, func() { conn.Close() })}
	conn.SetDeadline(time.Now().Add(stepLimit))
	_, err = conn.Write([]byte(token))
	if err == nil {
		err = c.answer()
	}
	if err != nil {
		c.close()
		return nil, troubleOther, err
	}
	return c, "", nil
}

// dialTrouble returns the trouble that an error of a dial stands for.
func dialTrouble(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return troubleLookup
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return troubleDenied
	case errors.Is(err, syscall.ECONNREFUSED):
		return troubleRefused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		return troubleRoute
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return troubleSilent
	}
	return troubleOther
}

// answer reads the answer to a message.
func (c *caller) answer() error {
	b, err := c.in.ReadByte()
	if err == nil && b != acknowledged {
		err = fmt.Errorf("got the byte %#x, want %#x: this is not the probe", b, acknowledged)
	}
	return err
}

// message returns a message with n bytes of content.
func message(n int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(n)), make([]byte, n)...)
}

// roundTrip sends a message and waits for the answer.
func (c *caller) roundTrip(m []byte) error {
	c.conn.SetDeadline(time.Now().Add(stepLimit))
	if _, err := c.conn.Write(m); err != nil {
		return err
	}
	return c.answer()
}

// check sends a small and a large message, and reports which of them does not get through.
func (c *caller) check() (trouble string, err error) {
	if err := c.roundTrip(message(smallMessage)); err != nil {
		return troubleOther, err
	}
	if err := c.roundTrip(message(largeMessage)); err != nil {
		return troubleLarge, err
	}
	return "", nil
}

// latency returns half of the median time of a round trip.
func (c *caller) latency() (time.Duration, error) {
	var times []time.Duration
	m := message(1)
	for begin := time.Now(); len(times) < maxRounds && (len(times) == 0 || time.Since(begin) < measureTime); {
		sent := time.Now()
		if err := c.roundTrip(m); err != nil {
			return 0, err
		}
		times = append(times, time.Since(sent))
	}
	slices.Sort(times)
	return times[len(times)/2] / 2, nil
}

// bandwidth returns how many bytes per second the other probe has read.
func (c *caller) bandwidth() (float64, error) {
	c.conn.SetDeadline(time.Now().Add(connLimit))
	m := message(largeMessage)
	begin := time.Now()
	sent, answered := 0, 0
	for sent == 0 || answered < sent {
		if sent == 0 || sent-answered < window && time.Since(begin) < measureTime {
			if _, err := c.conn.Write(m); err != nil {
				return 0, err
			}
			sent++
			continue
		}
		if err := c.answer(); err != nil {
			return 0, err
		}
		answered++
	}
	return float64(sent) * largeMessage / time.Since(begin).Seconds(), nil
}
