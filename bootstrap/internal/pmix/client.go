// Package pmix is a client of a PMIx server, which Open MPI's mpirun, prterun and srun --mpi=pmix
// run on each host of a job. It finds the layout of the job, and hands rank 0's value to all ranks.
//
// The server's address is in the environment. After the client's connect message and the server's
// answer, each message is a header and a body, and each request has one answer:
//
//	bytes   connect message                 later messages
//	0-3     int32 -1                        int32 index that the server gave this client
//	4-7     uint32 0xffffffff               uint32 tag; an answer has the tag of its request
//	8-11    uint32 size, in host order      uint32 size
//	12-15   0                               0
//
// Numbers are big-endian, except that the sizes of types are those of a little-endian 64-bit host.
// The body of the connect message and its answer are the same for all dialects; see hello. Later
// bodies depend on the dialect; see packer:
//
//	request    body                                            answer
//	commit 2   per scope (1 this host, 2 others): blob         status
//	fence 3    ranks: count, (job, all); options: collect      status, when all ranks have sent fence
//	get 4      job, rank, number of options (0), key           status, blobs of (job, rank, pairs)
//	finalize 5                                                 status
//
// The package does not launch, abort or watch processes, and it publishes one value only. It does
// not know what the value means.
package pmix

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds for what the server sends, and for what this package sends.
const (
	maxRanks     = 1 << 16
	maxNamespace = 255
	maxAnswer    = 1 << 20 // the longest answer lists the ranks of one host
	maxValue     = 512
)

// answerLimit bounds how long the server may take to accept the connection or to answer. Only the
// answer to a fence may take longer, because it waits for other ranks. finalizeLimit is shorter,
// because nothing depends on that answer.
const (
	answerLimit   = 30 * time.Second
	finalizeLimit = 2 * time.Second
)

// The commands of PMIx that this package sends.
const (
	cmdCommit   = 2
	cmdFence    = 3
	cmdGet      = 4
	cmdFinalize = 5
)

// allRanks stands for all ranks of a job. The server stores its own values under this number.
const allRanks = 1<<32 - 2

// The keys of this package's value, and of the server's.
const (
	keyValue      = "tutti.root"
	keySize       = "pmix.job.size" // the number of ranks
	keyLocalRanks = "pmix.lpeers"   // the ranks of this host, separated by commas
)

// A ServerConn is the connection of one process to the PMIx server of its host. One goroutine uses
// it.
type ServerConn struct {
	environment
	conn      net.Conn
	index     uint32 // the server's number of this client
	tag       uint32 // the tag of the last request
	size      int
	localRank int // -1 if the server does not say
	localSize int
	exchanged bool // Exchange has succeeded
}

// Dial connects to the server, and asks for the layout of the job. It fails when ctx ends, and when
// the server is silent for too long. The children of this process do not inherit the connection.
func Dial(ctx context.Context, lookup Lookup) (*ServerConn, error) {
	e, err := readEnvironment(lookup)
	if err != nil {
		return nil, fmt.Errorf("PMIx: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(limited, "tcp", e.server)
	if err != nil {
		return nil, e.failed("connect", err)
	}
	return open(ctx, e, conn)
}

// open introduces this process to the server at the other end of conn, and asks for the layout.
func open(ctx context.Context, e environment, conn net.Conn) (*ServerConn, error) {
	c := &ServerConn{environment: e, conn: conn, tag: 100, localRank: -1, localSize: -1}
	err := c.hello(ctx)
	if err == nil {
		err = c.layout(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// Layout returns this process's rank, the number of ranks, the index of this rank among the ranks
// of this host, and their number. The last two are -1 if the server does not say.
func (c *ServerConn) Layout() (rank, size, localRank, localSize int) {
	return int(c.rank), c.size, c.localRank, c.localSize
}

// Exchange publishes rank 0's value, waits until all ranks have called Exchange, and returns the
// value on every rank. Other ranks pass "". It fails when ctx ends and when the server ends. Only
// ctx bounds the wait for other ranks.
func (c *ServerConn) Exchange(ctx context.Context, value string) (string, error) {
	if c.rank == 0 {
		if len(value) == 0 || len(value) > maxValue {
			return "", fmt.Errorf("PMIx: got a value of %d bytes, want 1 to %d", len(value), maxValue)
		}
		if err := c.commit(ctx, value); err != nil {
			return "", err
		}
	}
	if err := c.fence(ctx); err != nil {
		return "", err
	}
	v, err := c.get(ctx, 0, keyValue)
	if err != nil {
		return "", err
	}
	s, ok := v.(string)
	if !ok || s == "" || len(s) > maxValue {
		return "", c.failed("get rank 0's value", fmt.Errorf("got %T of %d bytes, want a string of 1 to %d", v, len(s), maxValue))
	}
	c.exchanged = true
	return s, nil
}

// Close closes the connection. If Exchange has succeeded, Close first tells the server that this
// process no longer needs it, and waits for the answer for at most two seconds. Without this
// message the server would regard this process as failed, and might end the job.
func (c *ServerConn) Close() error {
	defer c.conn.Close()
	if !c.exchanged {
		return nil
	}
	_, err := c.call(context.Background(), "finalize", finalizeLimit, c.request(cmdFinalize))
	return err
}

// failed adds the address of the server and the step to an error.
func (e environment) failed(step string, err error) error {
	return fmt.Errorf("PMIx server %s (%s): %s: %w", e.server, e.dialect.name, step, err)
}

// hello sends the connect message, and reads the status and the index that answer it. The body is:
//
//	string   security mode       string   version of the PMIx library
//	uint32   size of the proof   string   dialect
//	bytes    proof               byte     1: values come without a description of their types
//	byte     0: a client         string   store of values: "hash", the one without shared memory
//	string   job                 (strings end with NUL)
//	uint32   rank
//
// The proof of mode native is this process's user and group, each a uint32 in host order.
func (c *ServerConn) hello(ctx context.Context) error {
	var proof []byte
	if c.security == "native" {
		proof = binary.NativeEndian.AppendUint32(proof, uint32(os.Geteuid()))
		proof = binary.NativeEndian.AppendUint32(proof, uint32(os.Getegid()))
	}
	b := append(make([]byte, 16), c.security+"\x00"...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(proof)))
	b = append(b, proof...)
	b = append(b, "\x00"+c.nspace+"\x00"...)
	b = binary.BigEndian.AppendUint32(b, c.rank)
	b = append(b, c.dialect.version+"\x00"+c.dialect.name+"\x00\x01hash\x00"...)
	binary.BigEndian.PutUint64(b, 1<<64-1)
	binary.NativeEndian.PutUint32(b[8:], uint32(len(b)-16))

	var answer [8]byte
	err := c.roundTrip(ctx, answerLimit, func() error {
		if _, err := c.conn.Write(b); err != nil {
			return err
		}
		// A server that refuses sends the status alone.
		if _, err := io.ReadFull(c.conn, answer[:4]); err != nil {
			return err
		}
		if status := int32(binary.BigEndian.Uint32(answer[:])); status != 0 {
			return refusal(status)
		}
		_, err := io.ReadFull(c.conn, answer[4:])
		return err
	})
	if err != nil {
		return c.failed("handshake", err)
	}
	c.index = binary.BigEndian.Uint32(answer[4:])
	return nil
}

// layout asks for the number of ranks, and for the ranks of this host.
func (c *ServerConn) layout(ctx context.Context) error {
	v, err := c.get(ctx, allRanks, keySize)
	if err != nil {
		return err
	}
	size, ok := v.(uint32)
	if !ok || size > maxRanks || c.rank >= size {
		return c.failed("get "+keySize, fmt.Errorf("got %T %.20s for rank %d, want a number above the rank and at most %d", v, fmt.Sprint(v), c.rank, maxRanks))
	}
	c.size = int(size)
	v, err = c.get(ctx, allRanks, keyLocalRanks)
	if r := refusal(0); errors.As(err, &r) {
		return nil // this server does not say which ranks are on this host
	}
	local, _ := v.(string)
	c.localRank, c.localSize = localIndex(local, int(c.rank), c.size)
	return err
}

// localIndex returns the index of a rank in a sorted list of ranks such as "2,0", and the length of
// the list. Both are -1 if the list is not a list of ranks of a job of the given size.
func localIndex(list string, rank, size int) (index, length int) {
	var ranks []int
	for text := range strings.SplitSeq(list, ",") {
		r, err := strconv.Atoi(text)
		if err != nil || r < 0 || r >= size {
			return -1, -1
		}
		ranks = append(ranks, r)
	}
	slices.Sort(ranks) // Open MPI 5 does not sort them
	index, found := slices.BinarySearch(ranks, rank)
	if !found || len(slices.Compact(ranks)) < len(ranks) {
		return -1, -1
	}
	return index, len(ranks)
}

// commit gives the server a value, once for the ranks of this host and once for the ranks of other
// hosts.
func (c *ServerConn) commit(ctx context.Context, value string) error {
	pair := packer{varints: c.dialect.varints}
	pair.item().string(keyValue)
	pair.uint16(typeString)
	pair.string(value)
	p := c.request(cmdCommit)
	for _, scope := range []byte{1, 2} {
		p.item().byte(scope)
		p.item().byte(1) // the blob's values come without a description of their types
		p.size(len(pair.b))
		p.b = append(p.b, pair.b...)
	}
	_, err := c.call(ctx, "commit", answerLimit, p)
	return err
}

// fence waits until all ranks of the job have called it. The servers then have all values.
func (c *ServerConn) fence(ctx context.Context) error {
	p := c.request(cmdFence)
	p.item().size(1)
	p.item().string(c.nspace)
	p.uint32(allRanks)
	p.item().size(1)
	p.item().string("pmix.collect")
	p.uint32(0) // the option is not required
	p.uint16(typeBool)
	p.byte(1)
	_, err := c.call(ctx, "fence", 0, p)
	return err
}

// get returns the value of a key of a rank, or nil if the server does not have it.
func (c *ServerConn) get(ctx context.Context, rank uint32, key string) (any, error) {
	p := c.request(cmdGet)
	p.item().string(c.nspace)
	p.item().uint32(rank)
	p.item().size(0)
	p.item().string(key)
	u, err := c.call(ctx, "get "+key, answerLimit, p)
	if err != nil {
		return nil, err
	}
	v, err := unpackValue(u, c.nspace, rank, key)
	if err != nil {
		return nil, c.failed("get "+key, err)
	}
	return v, nil
}

// request begins a message. It leaves room for the header.
func (c *ServerConn) request(command byte) *packer {
	p := &packer{b: make([]byte, 16), varints: c.dialect.varints}
	p.item().byte(command)
	return p
}

// call sends a request, and returns the rest of its answer after the status. If limit is 0, only
// ctx bounds the wait.
func (c *ServerConn) call(ctx context.Context, step string, limit time.Duration, p *packer) (*unpacker, error) {
	c.tag++
	c.putHeader(p.b)
	var u *unpacker
	err := c.roundTrip(ctx, limit, func() error {
		if _, err := c.conn.Write(p.b); err != nil {
			return err
		}
		body, err := c.answer()
		if err != nil {
			return err
		}
		u = &unpacker{b: body, varints: c.dialect.varints}
		status, err := unpackStatus(u)
		if err == nil && status != 0 {
			err = refusal(status)
		}
		return err
	})
	if err != nil {
		return nil, c.failed(step, err)
	}
	return u, nil
}

// putHeader writes the header of a request, which begins b.
func (c *ServerConn) putHeader(b []byte) {
	binary.BigEndian.PutUint32(b, c.index)
	binary.BigEndian.PutUint32(b[4:], c.tag)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-16))
}

// answer reads messages until the one with the tag of the last request. It drops messages with
// other tags, because a server also sends notifications of events.
func (c *ServerConn) answer() ([]byte, error) {
	for {
		var h [16]byte
		if _, err := io.ReadFull(c.conn, h[:]); err != nil {
			return nil, err
		}
		n := binary.BigEndian.Uint32(h[8:])
		if n > maxAnswer {
			return nil, fmt.Errorf("got an answer of %d bytes, want at most %d", n, maxAnswer)
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(c.conn, body); err != nil {
			return nil, err
		}
		if binary.BigEndian.Uint32(h[4:]) == c.tag {
			return body, nil
		}
	}
}

// roundTrip runs f. The end of ctx unblocks f's reads and writes, and so does the limit, unless it
// is 0. If ctx has ended, the error is the error of ctx.
func (c *ServerConn) roundTrip(ctx context.Context, limit time.Duration, f func() error) error {
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	c.conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := f()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("got no answer within %v", limit)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the server has closed the connection")
	}
	return err
}

// A refusal is the status of an answer that reports an error.
type refusal int32

// Error returns the status, and what it means if that is known.
func (r refusal) Error() string {
	meaning := "see pmix_common.h"
	switch r {
	case -12:
		meaning = "the server does not accept this user"
	case -24:
		meaning = "timeout"
	case -46:
		meaning = "not found"
	case -50, -52, -61: // the launchers differ
		meaning = "another rank has ended, or lost its connection"
	}
	return fmt.Sprintf("got status %d (%s), want 0", int32(r), meaning)
}
