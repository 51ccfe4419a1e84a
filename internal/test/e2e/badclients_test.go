//go:build unix

package e2e

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/vars"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/auto"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// passTokens passes a token up and down the ranks until gate 0 opens, so that only neighbours are
// connected. Then the first and the last rank connect for the first time.
func passTokens(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	opened := make(chan struct{})
	if a.rank == 0 {
		go func() {
			a.awaitGate(0)
			close(opened)
		}()
	}
	last := c.Size() - 1
	for i, on := 0, true; on; i++ {
		token := []int32{0, 1} // the number of ranks that it has passed, and whether to go on
		select {
		case <-opened:
			token[1] = 0
		default:
		}
		if err := passToken(ctx, c, token); err != nil {
			return a.report("harmed", callHere(), err)
		}
		if want := int32(a.rank + 2*(last-a.rank)); token[0] != want {
			return fmt.Errorf("the token has passed %d hands, want %d", token[0], want)
		}
		if on = token[1] == 1; i == 0 {
			a.log("working", "")
		}
	}
	switch a.rank {
	case last:
		at, err := callHere(), comm.Send(ctx, c, 0, 1, []int32{42})
		a.report("met", at, err)
	case 0:
		got := []int32{0}
		at := callBelow()
		_, err := comm.Recv(ctx, c, comm.AnySource, 1, got)
		if a.report("met", at, err); err == nil && got[0] != 42 {
			return fmt.Errorf("got %d", got[0])
		}
	}
	at, err := callHere(), c.Barrier(ctx)
	return a.report("done", at, err)
}

// passToken passes the token from rank 0 to the last rank and back.
func passToken(ctx context.Context, c *comm.Comm, token []int32) error {
	r, last := c.Rank(), c.Size()-1
	if r > 0 {
		if _, err := comm.Recv(ctx, c, r-1, 0, token); err != nil {
			return err
		}
	}
	if r < last {
		token[0]++
		if err := comm.Send(ctx, c, r+1, 0, token); err != nil {
			return err
		}
		if _, err := comm.Recv(ctx, c, r+1, 0, token); err != nil {
			return err
		}
	}
	if r == 0 {
		return nil
	}
	token[0]++
	err := comm.Send(ctx, c, r-1, 0, token)
	token[0]--
	return err
}

const refused = `msg="a connection refused"`

func TestBadClientsAreRefusedWithOneLogLine(t *testing.T) {
	for _, wire := range streams() {
		t.Run(wire, func(t *testing.T) {
			const ranks = 4
			j := spawn(t, ranks, wire, instruction{Program: "host"})
			j.events("working", ranks)
			lines := 0
			for _, s := range badClients(wire) {
				t.Run(s.name, func(t *testing.T) {
					in := *j
					in.t = t
					s.connect(&in)
					if s.wantLog == "" {
						return
					}
					lines++
					// Rank 0 may log the refusal a moment after it has closed the connection.
					j.err.await(limit, func(got []string) bool {
						return countLines(got, "rank=0", refused) >= lines
					})
					if n := j.err.count("rank=0", refused, s.wantLog); n != 1 {
						t.Errorf("%d lines of rank 0 say %q, want 1:\n%v", n, s.wantLog, j.err)
					}
				})
			}
			if n := j.err.count("rank=0", "level="); n != lines {
				t.Errorf("rank 0 has logged %d lines, want %d:\n%v", n, lines, j.err)
			}
			j.open(0)
			for _, e := range j.events("done", ranks) {
				if e.Failed {
					t.Errorf("rank %d was harmed: %s", e.Rank, e.Text)
				}
			}
			for _, p := range j.ranks[:ranks] {
				p.wantExit(j, 0)
			}
		})
	}
}

// A badClient connects to rank 0's port without being a rank of the job.
type badClient struct {
	name    string
	connect func(j *job)
	wantLog string // part of the one line that rank 0 logs; "" if it logs no line
}

func badClients(wire string) []badClient {
	first := map[string]string{"tcp": "\xf5tu2", "grpc": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}[wire]
	nonsense := map[string]string{"tcp": "invalid frame", "grpc": "sent malformed bytes"}[wire]
	other := strings.Repeat("another secret..", 2)
	return []badClient{
		{"one who only looks", func(j *job) { j.dial().Close() }, ""},
		{"random bytes", func(j *job) { j.sendRaw("\x8e\x01\x77\xfa\x00\x00\x10\xff\x3c\xc3") }, `its first bytes are \"\\x8e\\x01`},
		{"an HTTP request", func(j *job) { j.sendRaw("GET / HTTP/1.1\r\nHost: x\r\n\r\n") }, "GET / HTTP/1.1"},
		{"TLS", func(j *job) { j.sendRaw("\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03") }, "TLS"},
		{"random bytes after the right first bytes", func(j *job) {
			j.sendRaw(first + strings.Repeat("\x8e\x01\x77\xfa\x00\x00\x10\xff\x3c\xc3", 20))
		}, nonsense},
		{"a head that is no hello", func(j *job) { j.sendHello(wire, "nobody speaks so", nil) }, "does not speak tutti's handshake"},
		{"another version", func(j *job) {
			j.sendHello(wire, "", func(h []byte) { binary.LittleEndian.PutUint16(h[6:], 7) })
		}, "protocol version: the accepting rank speaks 3, the dialling rank 7"},
		{"another byte order", func(j *job) { j.sendHello(wire, "", func(h []byte) { h[8] = 'L' ^ 'B' ^ nativeOrder() }) },
			"byte order: "},
		{"a wrong secret", func(j *job) {
			j.intruder(wire, vars.Secret+"="+hex.EncodeToString([]byte(other)))
		}, "secret: "},
		{"no secret", func(j *job) { j.intruder(wire, vars.Secret+"=") }, "secret: the accepting rank has one, the dialling rank has none"},
		{"another job's rank", func(j *job) { j.intruder(wire, vars.Job+"=another") }, "job: accepting rank 0 has "},
		{"a rank of an earlier incarnation", func(j *job) { j.intruder(wire, vars.Incarnation+"=0") }, "incarnation: accepting rank 0 has 1, dialling rank 1 has 0"},
		{"a rank of a larger job", func(j *job) { j.intruder(wire, vars.Size+"=9") }, "world size: accepting rank 0 has 4, dialling rank 1 has 9"},
		{"another process as rank 1", func(j *job) { j.intruder(wire) }, "rank: another process has joined as rank 1"},
	}
}

func nativeOrder() byte {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return 'L'
	}
	return 'B'
}

// dial opens a connection to rank 0.
func (j *job) dial() net.Conn {
	j.t.Helper()
	nc, err := net.DialTimeout("tcp", j.root, limit)
	if err != nil {
		j.t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(limit))
	return nc
}

// sendRaw sends bytes to rank 0 and waits until rank 0 has closed the connection.
func (j *job) sendRaw(words string) {
	j.t.Helper()
	nc := j.dial()
	defer nc.Close()
	io.WriteString(nc, words) // rank 0 may close the connection before the end
	if _, err := io.Copy(io.Discard, nc); err != nil && strings.Contains(err.Error(), "timeout") {
		j.t.Errorf("the connection stays: %v", err)
	}
}

// sendHello sends rank 0 the first frame of package mesh's handshake, as rank 1. The function
// change, if not nil, alters this frame first. If the parameter instead is not "", sendHello sends
// its bytes in place of the frame. It waits for an answer, or for the end of the connection.
func (j *job) sendHello(wire, instead string, change func(h []byte)) {
	j.t.Helper()
	head := make([]byte, 84)
	copy(head, "tuti\x01\x00\x03\x00")
	head[8], head[9], head[10] = nativeOrder(), 1, 1
	binary.LittleEndian.PutUint32(head[16:], 1) // rank 1 of 4 dials rank 0
	binary.LittleEndian.PutUint32(head[20:], 4)
	if change != nil {
		change(head)
	}
	binary.LittleEndian.PutUint32(head[80:], crc32.Checksum(head[:80], crc32.MakeTable(crc32.Castagnoli)))
	if instead != "" {
		head = []byte(instead)
	}
	w, err := auto.New(wire, auto.Options{Wires: linked.All()})
	if err != nil {
		j.t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := w.Dial(ctx, j.root)
	if err != nil {
		j.t.Fatal(err)
	}
	c.Send(&transport.Frame{Head: head, Done: func(error) {}})
	wake := make(chan struct{}, 1)
	answered := make(answerSink, 1)
	for err = nil; err == nil && len(answered) == 0 && ctx.Err() == nil; {
		var s transport.State
		if s, err = c.Progress(answered, 1); err == nil && s != transport.Moved {
			c.Arm(func() { wake <- struct{}{} })
			select {
			case <-wake:
			case <-ctx.Done():
			}
		}
	}
	if ctx.Err() != nil {
		j.t.Error("the connection stays")
	}
	c.Close()
}

// An answerSink is a transport.Sink that waits for one frame and drops it.
type answerSink chan struct{}

func (answerSink) Buffer(transport.Header) []byte { return nil }

func (e answerSink) Arrived(h transport.Header, n int) {
	if n == h.Size && len(e) == 0 {
		e <- struct{}{}
	}
}

// intruder starts a process that claims to be rank 1, with the variables env in its environment,
// and waits until rank 0 refuses the process.
func (j *job) intruder(wire string, env ...string) {
	j.t.Helper()
	reported := j.out.count(`"Name":"refused"`)
	p := j.rank(1, 4, wire, instruction{Program: "host"}, env...)
	p.wantExit(j, 1)
	if !j.out.await(limit, func(lines []string) bool { return countLines(lines, `"Name":"refused"`, `"Kind":"refused"`) > reported }) {
		j.t.Errorf("the intruder was not refused:\n%v\n%v", j.out, j.err)
	}
}

func TestHalfOpenConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	for _, wire := range streams() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			const ranks, slots, visitors = 4, 64, 100
			j := newJob(t)
			j.listen()
			o := instruction{Program: "host"}
			for r := range ranks - 1 {
				j.rank(r, ranks, wire, o)
			}
			// Some of these clients connect before the last rank has joined. They are more than
			// rank 0 has room for when the first and the last rank connect for the first time.
			for range 20 {
				defer j.dial().Close()
			}
			j.rank(ranks-1, ranks, wire, o)
			j.events("working", ranks)
			for range visitors - 20 {
				defer j.dial().Close()
			}
			if !j.err.await(limit, func(got []string) bool {
				return countLines(got, "rank=0", "other connections wait for one of the 64 slots") > 0
			}) {
				t.Fatalf("rank 0 has refused nobody for lack of a slot:\n%v", j.err)
			}
			began := time.Now()
			j.open(0)
			for _, e := range append(j.events("met", 2), j.events("done", ranks)...) {
				if e.Failed {
					t.Errorf("rank %d was harmed: %s", e.Rank, e.Text)
				}
			}
			for _, p := range j.ranks {
				p.wantExit(j, 0)
			}
			t.Logf("done %v after the slots were taken", time.Since(began))
			if n := j.err.count("rank=0", "level="); n > slots+5 {
				t.Errorf("rank 0 has logged %d lines about %d visitors:\n%v", n, visitors, j.err)
			}
		})
	}
}
