package store

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
)

// maxLine bounds a request or an answer: a value in base64, a key in JSON and the other fields.
const maxLine = MaxValue/3*4 + 6*MaxKey + 1024

// maxRequests bounds the requests of one connection that have no answer yet.
const maxRequests = 64

// A request is a line from the client to the server.
type request struct {
	ID      uint64 `json:"id"`
	Op      string `json:"op"`
	Key     string `json:"key,omitempty"`
	Version uint64 `json:"version,omitempty"`
	Value   []byte `json:"value,omitempty"`
}

// An answer is a line from the server to the client.
type answer struct {
	ID      uint64 `json:"id"`
	Version uint64 `json:"version,omitempty"`
	Value   []byte `json:"value,omitempty"`
	Swapped bool   `json:"swapped,omitempty"`
	Error   string `json:"error,omitempty"`
}

// lines returns a scanner for the lines of a connection. Its buffer grows up to maxLine.
func lines(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	return s
}

// A lineConn writes lines to a connection, one at a time.
type lineConn struct {
	mu   sync.Mutex // one write at a time
	conn io.ReadWriteCloser
}

// write writes a value as one line. If that fails, it closes the connection.
func (l *lineConn) write(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err = l.conn.Write(append(line, '\n')); err != nil {
		l.conn.Close()
	}
	return err
}

// Serve answers the requests that arrive on conn from s. It returns when conn ends, and after all
// its goroutines have ended. A malformed line ends the connection. The caller closes conn to end
// Serve; Serve closes conn, too.
func Serve(conn io.ReadWriteCloser, s Store) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &serverConn{lineConn: lineConn{conn: conn}, store: s, pending: make(map[uint64]context.CancelFunc)}
	defer c.work.Wait()
	defer cancel()
	defer conn.Close()
	for in := lines(conn); in.Scan(); {
		var r request
		if json.Unmarshal(in.Bytes(), &r) != nil {
			return
		}
		c.handle(ctx, r)
	}
}

// A serverConn is one connection of Serve.
type serverConn struct {
	lineConn
	store Store
	work  sync.WaitGroup // one goroutine for each pending request

	pendingMu sync.Mutex // guards pending
	pending   map[uint64]context.CancelFunc
}

// handle begins a request, and returns before the request has ended.
func (c *serverConn) handle(ctx context.Context, r request) {
	c.pendingMu.Lock()
	defer c.pendingMu.Unlock()
	end, known := c.pending[r.ID]
	switch {
	case r.Op == "cancel":
		if known {
			end()
		}
		return
	case known, len(c.pending) >= maxRequests:
		c.conn.Close() // this client does not follow the protocol
		return
	}
	ctx, end = context.WithCancel(ctx)
	c.pending[r.ID] = end
	c.work.Go(func() {
		a := c.answer(ctx, r)
		canceled := ctx.Err() != nil
		end()
		c.pendingMu.Lock()
		delete(c.pending, r.ID)
		c.pendingMu.Unlock()
		if !canceled {
			c.write(a)
		}
	})
}

// answer carries out a request.
func (c *serverConn) answer(ctx context.Context, r request) (a answer) {
	var e Versioned
	var err error
	switch r.Op {
	case "get":
		e, err = c.store.Get(ctx, r.Key)
	case "watch":
		e, err = c.store.Watch(ctx, r.Key, r.Version)
	case "swap":
		a.Swapped, err = c.store.CompareAndSwap(ctx, r.Key, r.Version, r.Value)
	default:
		err = errors.New("store: got an unknown operation, want get, swap, watch or cancel")
	}
	a.ID, a.Version, a.Value = r.ID, e.Version, e.Value
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// A Client is a Store at the other end of a connection. It lives as long as the connection.
type Client struct {
	lineConn

	stateMu sync.Mutex // guards the fields below
	id      uint64
	pending map[uint64]chan answer // each has room for its answer; nil when the connection has ended
}

// NewClient returns the Store that is served at the other end of conn. The Client owns conn.
func NewClient(conn io.ReadWriteCloser) *Client {
	// A script may start several programs, which use one connection one after the other. Each
	// begins with a random id, so that it ignores answers to a program that has ended.
	c := &Client{lineConn: lineConn{conn: conn}, id: rand.Uint64(), pending: make(map[uint64]chan answer)}
	go c.read()
	return c
}

// Close ends the connection. Requests that wait get ErrClosed.
func (c *Client) Close() error { return c.conn.Close() }

// read passes answers to the requests that wait for them, until the connection ends.
func (c *Client) read() {
	for in := lines(c.conn); in.Scan(); {
		var a answer
		if json.Unmarshal(in.Bytes(), &a) != nil {
			break
		}
		c.stateMu.Lock()
		if ch := c.pending[a.ID]; ch != nil {
			delete(c.pending, a.ID)
			ch <- a
		}
		c.stateMu.Unlock()
	}
	c.conn.Close()
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	for _, ch := range c.pending {
		close(ch)
	}
	c.pending = nil
}

// do sends a request and waits for its answer.
func (c *Client) do(ctx context.Context, r request) (answer, error) {
	if err := check(r.Key, r.Value); err != nil {
		return answer{}, err
	}
	ch := make(chan answer, 1)
	c.stateMu.Lock()
	if c.pending == nil {
		c.stateMu.Unlock()
		return answer{}, ErrClosed
	}
	c.id++
	r.ID = c.id
	c.pending[r.ID] = ch
	c.stateMu.Unlock()
	if err := c.write(r); err != nil {
		return answer{}, ErrClosed
	}
	select {
	case a, ok := <-ch:
		switch {
		case !ok:
			return answer{}, ErrClosed
		case a.Error != "":
			return answer{}, errors.New(a.Error)
		}
		return a, nil
	case <-ctx.Done():
		c.stateMu.Lock()
		delete(c.pending, r.ID)
		c.stateMu.Unlock()
		c.write(request{ID: r.ID, Op: "cancel"})
		return answer{}, ctx.Err()
	}
}

// Get implements Store.
func (c *Client) Get(ctx context.Context, key string) (Versioned, error) {
	a, err := c.do(ctx, request{Op: "get", Key: key})
	return Versioned{a.Version, a.Value}, err
}

// CompareAndSwap implements Store. If ctx or the connection ends, the swap may have happened.
func (c *Client) CompareAndSwap(ctx context.Context, key string, version uint64, value []byte) (bool, error) {
	a, err := c.do(ctx, request{Op: "swap", Key: key, Version: version, Value: value})
	return a.Swapped, err
}

// Watch implements Store.
func (c *Client) Watch(ctx context.Context, key string, version uint64) (Versioned, error) {
	a, err := c.do(ctx, request{Op: "watch", Key: key, Version: version})
	return Versioned{a.Version, a.Value}, err
}
