// Package pmi speaks PMI-1, the protocol by which MPICH's mpiexec (Hydra) and the plug-in pmi2 of
// Slurm's srun tell their processes about each other. A Session is the side of a process. A Server
// is the side of a process manager, for programs that are linked with MPICH.
//
// A message is one line of at most maxLine bytes, with words of the form key=value in any order:
//
//	this process                                  process manager
//	cmd=initack pmiid=1                       ->  only by PMI_PORT
//	                                          <-  cmd=initack
//	                                          <-  cmd=set size=2
//	                                          <-  cmd=set rank=1
//	                                          <-  cmd=set debug=0
//	cmd=init pmi_version=1 pmi_subversion=1   ->
//	                                          <-  cmd=response_to_init rc=0 pmi_version=1 ...
//	cmd=get_my_kvsname                        ->
//	                                          <-  cmd=my_kvsname kvsname=K
//	cmd=put kvsname=K key=... value=...       ->  rank 0
//	                                          <-  cmd=put_result rc=0 ...
//	cmd=barrier_in                            ->
//	                                          <-  cmd=barrier_out, when all ranks have sent barrier_in
//	cmd=get kvsname=K key=...                 ->
//	                                          <-  cmd=get_result rc=0 value=...
//	cmd=finalize                              ->
//	                                          <-  cmd=finalize_ack
//
// The package does not speak PMI-2. Each of these process managers that speaks PMI-2 also answers
// PMI-1: srun --mpi=pmi2 decides by the first message of a process.
package pmi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// maxRanks bounds the number of ranks that a process manager may name.
const maxRanks = 1 << 16

// answerLimit bounds how long the process manager may take to answer. Only the answer to barrier_in
// may take longer, because it waits for other ranks. finalizeLimit is shorter, because nothing
// depends on that answer.
const (
	answerLimit   = 30 * time.Second
	finalizeLimit = 2 * time.Second
)

// The names of the variables by which a process manager tells a process how to reach it.
const (
	varFD   = "PMI_FD"   // an inherited, connected socket
	varRank = "PMI_RANK" // with PMI_FD
	varSize = "PMI_SIZE" // with PMI_FD
	varPort = "PMI_PORT" // host:port
	varID   = "PMI_ID"   // with PMI_PORT: which process this is
)

// Inherited reports whether PMI_FD is an open, connected socket that this process has inherited. A
// variable that is left over from an outer job does not count, even if its number is now a socket
// that this process has opened itself.
func Inherited(lookup func(string) (string, bool)) bool {
	fd, err := strconv.Atoi(value(lookup, varFD))
	return err == nil && fd > 2 && isInherited(fd)
}

// Listening reports whether PMI_PORT and PMI_ID are set, as mpiexec -pmi-port sets them.
func Listening(lookup func(string) (string, bool)) bool {
	return value(lookup, varPort) != "" && value(lookup, varID) != ""
}

// value returns a variable, or "" if it is not set.
func value(lookup func(string) (string, bool), name string) string {
	v, _ := lookup(name)
	return v
}

// A Session is the connection of one process to its process manager. One goroutine uses it.
type Session struct {
	conn       net.Conn
	in         *bufio.Reader
	kvs        string // the name of the job's key-value store
	rank, size int
	local      layout
	exchanged  bool // Exchange has succeeded
}

// A layout is the index of a rank among the ranks of its host, and their number. Both are -1 if
// they are unknown.
type layout struct{ rank, size int }

// Dial connects to the process manager by PMI_FD, or else by PMI_PORT, and asks for the rank, the
// size and the layout of the job. It ends when ctx ends, and also if the process manager is silent.
// The descriptor of PMI_FD is closed then, and this process's children do not inherit the
// connection.
func Dial(ctx context.Context, lookup func(string) (string, bool)) (*Session, error) {
	if !Inherited(lookup) {
		return dialPort(ctx, value(lookup, varPort), value(lookup, varID))
	}
	rank, err := number(value(lookup, varRank), 0, maxRanks-1)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", varRank, err)
	}
	size, err := number(value(lookup, varSize), 1, maxRanks)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", varSize, err)
	}
	fd, _ := strconv.Atoi(value(lookup, varFD))
	conn, err := adopt(fd)
	if err != nil {
		return nil, fmt.Errorf("%s=%d: %w", varFD, fd, err)
	}
	c := newSession(conn)
	c.rank, c.size = rank, size
	return c.opened(c.open(ctx))
}

// dialPort connects to the process manager at a port, and says which process this is.
func dialPort(ctx context.Context, addr, id string) (*Session, error) {
	if _, err := number(id, 0, maxRanks-1); err != nil {
		return nil, fmt.Errorf("%s: %w", varID, err)
	}
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(limited, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w", varPort, addr, err)
	}
	c := newSession(conn)
	err = c.identify(ctx, id)
	if err == nil {
		err = c.open(ctx)
	}
	return c.opened(err)
}

// newSession returns a session that has not sent anything yet.
func newSession(conn net.Conn) *Session {
	return &Session{conn: conn, in: bufio.NewReaderSize(conn, maxLine), local: layout{-1, -1}}
}

// opened returns the session, or closes it if err is not nil.
func (c *Session) opened(err error) (*Session, error) {
	if err != nil {
		c.conn.Close()
		return nil, err
	}
	return c, nil
}

// identify sends the id of this process, and reads its rank and the size of the job.
func (c *Session) identify(ctx context.Context, id string) error {
	if _, err := c.call(ctx, answerLimit, "cmd=initack pmiid="+id, "initack"); err != nil {
		return err
	}
	for _, word := range []struct {
		key    string
		lo, hi int
		to     *int
	}{{"size", 1, maxRanks, &c.size}, {"rank", 0, maxRanks - 1, &c.rank}, {"debug", 0, 1 << 30, new(int)}} {
		m, err := c.call(ctx, answerLimit, "", "set")
		if err != nil {
			return err
		}
		if *word.to, err = number(m[word.key], word.lo, word.hi); err != nil {
			return fmt.Errorf("process manager: cmd=set %s: %w", word.key, err)
		}
	}
	return nil
}

// open agrees on the version, and asks for the name of the key-value store and the layout.
func (c *Session) open(ctx context.Context) error {
	if c.rank >= c.size {
		return fmt.Errorf("process manager: got rank %d of %d, want a rank below the size", c.rank, c.size)
	}
	m, err := c.call(ctx, answerLimit, "cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
	if err != nil {
		return err
	}
	if v := m["pmi_version"]; v != "1" {
		return fmt.Errorf("process manager: got PMI version %.20q, want 1", v)
	}
	if m, err = c.call(ctx, answerLimit, "cmd=get_my_kvsname", "my_kvsname"); err != nil {
		return err
	}
	if c.kvs = m["kvsname"]; c.kvs == "" {
		return errors.New("process manager: cmd=my_kvsname: got no kvsname")
	}
	// A process manager may not know the layout, and its answer is then an error.
	m, err = c.call(ctx, answerLimit, "cmd=get kvsname="+c.kvs+" key="+mappingKey, "get_result")
	var no *refusal
	if errors.As(err, &no) {
		return nil
	}
	c.local = layoutOf(m["value"], c.rank, c.size)
	return err
}

// Layout returns the rank of this process, the number of ranks, the index of this rank among the
// ranks of its host, and their number. The last two are -1 if the process manager does not say.
func (c *Session) Layout() (rank, size, localRank, localSize int) {
	return c.rank, c.size, c.local.rank, c.local.size
}

// key is the key under which rank 0 publishes its value.
const key = "tutti-rank-0"

// Exchange publishes the value of rank 0, waits until all ranks have called Exchange, and returns
// the value on every rank. Other ranks pass "". The value must not contain white space. Exchange
// ends when ctx ends, and when the process manager ends. ctx needs a deadline: some process
// managers wait for ever for a rank that has ended before it called Exchange.
func (c *Session) Exchange(ctx context.Context, value string) (string, error) {
	if c.rank == 0 {
		if _, err := c.call(ctx, answerLimit, "cmd=put kvsname="+c.kvs+" key="+key+" value="+value, "put_result"); err != nil {
			return "", err
		}
	}
	if _, err := c.call(ctx, 0, "cmd=barrier_in", "barrier_out"); err != nil {
		return "", err
	}
	m, err := c.call(ctx, answerLimit, "cmd=get kvsname="+c.kvs+" key="+key, "get_result")
	c.exchanged = err == nil
	return m["value"], err
}

// Close closes the connection. If Exchange has succeeded, Close first tells the process manager
// that this process is done, and the process may then end at any time. Otherwise the process
// manager takes this process for failed when the process ends, and ends the other ranks, which may
// wait in Exchange.
func (c *Session) Close() error {
	var err error
	if c.exchanged {
		_, err = c.call(context.Background(), finalizeLimit, "cmd=finalize", "finalize_ack")
	}
	return errors.Join(err, c.conn.Close())
}

// call sends a request, unless it is "", and reads the answer, which must be of the given command.
// It fails when ctx ends, or after limit, unless limit is 0. An answer that refuses the request is
// a *refusal. After any other error the session is of no use.
func (c *Session) call(ctx context.Context, limit time.Duration, request, command string) (message, error) {
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	c.conn.SetDeadline(deadline)
	defer context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })()
	m, err := c.exchangeLines(request, command)
	var no *refusal
	if err == nil || errors.As(err, &no) {
		return m, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("process manager: no answer cmd=%s: %w", command, context.Cause(ctx))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("process manager: no answer cmd=%s within %v", command, limit)
	}
	return nil, fmt.Errorf("process manager: waiting for cmd=%s: %w", command, err)
}

// exchangeLines writes a line and reads a line.
func (c *Session) exchangeLines(request, command string) (message, error) {
	if request != "" {
		if _, err := c.conn.Write([]byte(request + "\n")); err != nil {
			return nil, err
		}
	}
	line, err := readLine(c.in)
	if err != nil {
		return nil, err
	}
	m, err := parse(line)
	if err != nil {
		return nil, err
	}
	if m["cmd"] != command {
		return nil, fmt.Errorf("got %.80q, want cmd=%s", line, command)
	}
	if rc, ok := m["rc"]; ok && rc != "0" {
		return nil, &refusal{command, rc, m["msg"]}
	}
	return m, nil
}
