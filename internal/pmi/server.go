package pmi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

// The lengths that a Server allows, and announces in answer to get_maxes. A line with a key and a
// value of these lengths has less than 1024 bytes, because MPICH's client reads no longer line.
const (
	maxName  = 64
	maxKey   = 64
	maxValue = 768
)

// maxStored bounds the bytes of keys and values that a Server keeps for one rank.
const maxStored = 256 << 10

// A Server is the process manager of one job. It answers the requests of all ranks, and finds out
// when the ranks cannot go on. Any number of goroutines may call its methods.
type Server struct {
	name   string        // of the key-value store
	failed chan struct{} // closed when there is a Failure

	mu      sync.Mutex // guards the fields below
	ranks   []client
	waiting int               // how many ranks are in the state waiting
	values  map[string]string // the key-value store
	failure *Failure

	signalled bool // Signalled has been called
	stopped   bool // Stop has been called
}

// A client is what a Server knows of one rank. Its states:
//
//	silent ---- request ----> active -- barrier_in --> waiting
//	   |                        | ^                       |
//	   |                        | +-- all ranks wait -----+
//	   | the connection ends    |
//	   v                        | finalize, abort, or the connection ends
//	 gone <---------------------+
//
// A rank that is silent may run a program without PMI, or may start a program with PMI later.
type client struct {
	conn   io.ReadWriteCloser // nil before Serve
	app    int
	state  state
	stored int // the bytes of the keys and values that it has put
}

type state uint8

const (
	silent state = iota
	active
	waiting
	gone
)

// A Failure says why the ranks of a job cannot go on.
type Failure struct {
	Rank int    // the rank that has caused it
	Code int    // the exit code for the job, 1 to 255; 0 if a signal may have caused the failure
	Text string // what the rank did: a verb and the rest of a sentence

	Aborted bool // the rank has asked for the end of the job, and waits for it
}

// NewServer returns the process manager of a job. The parameter name is the name of the key-value
// store, and has at most 64 bytes. By rank, apps holds the number of the program, and nodes the
// number of the host. If the mapping to hosts is too long for a value, the Server does not have it,
// and the ranks do not know their hosts.
func NewServer(name string, apps, nodes []int) *Server {
	s := &Server{name: name, failed: make(chan struct{}), ranks: make([]client, len(apps)), values: make(map[string]string)}
	if m := mapping(nodes); len(m) <= maxValue {
		s.values[mappingKey] = m
	}
	for rank, app := range apps {
		s.ranks[rank].app = app
	}
	return s
}

// mapping returns the value of mappingKey for ranks on these nodes.
func mapping(nodes []int) string {
	var b strings.Builder
	b.WriteString("(vector")
	for i, n := 0, 0; i < len(nodes); i += n {
		for n = 1; i+n < len(nodes) && nodes[i+n] == nodes[i]; n++ {
		}
		fmt.Fprintf(&b, ",(%d,1,%d)", nodes[i], n)
	}
	return b.String() + ")"
}

// Failed returns a channel that is closed when the ranks cannot go on.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// Failure returns why the ranks could not go on, or nil. It is the first cause.
func (s *Server) Failure() *Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Signalled tells the Server that the ranks get a signal by which they may end. From now on, the
// end of a connection is no failure. An abort, and a barrier that a rank can never enter, still are
// failures, because nothing else would end the job.
func (s *Server) Signalled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signalled = true
}

// Stop makes the Server ignore failures from now on, because the job is being ended.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}

// CloseRead makes each call of Serve return once it has handled what its rank has sent. It has no
// effect on connections without a method CloseRead.
func (s *Server) CloseRead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.ranks {
		if c, ok := s.ranks[i].conn.(interface{ CloseRead() error }); ok {
			c.CloseRead()
		}
	}
}

// Close ends all connections, and so all calls of Serve.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.ranks {
		if c := s.ranks[i].conn; c != nil {
			c.Close()
		}
	}
}

// Serve answers the requests of a rank. It returns when the rank finalizes, when it sends what is
// no request, and when the connection ends. Serve then closes the connection. It does not limit how
// long a rank may be silent.
func (s *Server) Serve(rank int, conn io.ReadWriteCloser) {
	defer conn.Close()
	s.mu.Lock()
	s.ranks[rank].conn = conn
	s.mu.Unlock()
	in := bufio.NewReaderSize(conn, maxLine)
	for {
		m, err := readRequest(in)
		answer, last := "", true
		if err == nil {
			answer, last, err = s.handle(rank, m)
		}
		if err == nil && answer != "" {
			_, err = conn.Write([]byte(answer + "\n"))
		}
		if err != nil {
			s.lost(rank, err)
		}
		if last || err != nil {
			return
		}
	}
}

// readRequest reads a request. A request of several lines begins with mcmd=NAME and ends with
// endcmd. The Server refuses all of them, so readRequest returns only the name.
func readRequest(in *bufio.Reader) (message, error) {
	line, err := readLine(in)
	if err != nil {
		return nil, err
	}
	name, several := strings.CutPrefix(line, "mcmd=")
	if !several {
		// A rank that aborts may add a text, in which keys may occur twice.
		line, _, _ = strings.Cut(line, " error_msg=")
		return parse(line)
	}
	for line != "endcmd" {
		if line, err = readLine(in); err != nil {
			return nil, err
		}
	}
	return message{"cmd": name}, nil
}

// handle carries out a request, and returns the answer, or "" if there is none or it comes later.
// The result last says that the rank sends no further request.
func (s *Server) handle(rank int, m message) (answer string, last bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.ranks[rank]
	switch c.state {
	case gone:
		return "", false, nil // it has aborted
	case waiting:
		return "", false, malformed(fmt.Sprintf("got cmd=%.80q, want none before cmd=barrier_out", m["cmd"]))
	}
	c.state = active
	switch cmd := m["cmd"]; cmd {
	case "init":
		rc := 0
		if m["pmi_version"] != "1" {
			rc = -1
		}
		return fmt.Sprintf("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=%d", rc), false, nil
	case "get_maxes":
		return fmt.Sprintf("cmd=maxes kvsname_max=%d keylen_max=%d vallen_max=%d", maxName, maxKey, maxValue), false, nil
	case "get_appnum":
		return fmt.Sprintf("cmd=appnum appnum=%d", c.app), false, nil
	case "get_universe_size":
		return fmt.Sprintf("cmd=universe_size size=%d", len(s.ranks)), false, nil
	case "get_my_kvsname":
		return "cmd=my_kvsname kvsname=" + s.name, false, nil
	case "put":
		return "cmd=put_result " + s.putLocked(c, m), false, nil
	case "get":
		return "cmd=get_result " + s.getLocked(m), false, nil
	case "barrier_in":
		c.state = waiting
		s.waiting++
		s.checkBarrierLocked()
		return "", false, nil
	case "finalize":
		c.state = gone
		s.checkBarrierLocked()
		return "cmd=finalize_ack", true, nil
	case "abort":
		n, _ := strconv.Atoi(m["exitcode"])
		code := max(n&0xff, 1) // as a process that exits with n, but not 0
		// MPICH's client waits for an answer until it is killed. If the connection ended, the
		// client would go on. So the Server neither answers nor closes the connection.
		c.state = gone
		s.failLocked(Failure{rank, code, fmt.Sprintf("aborted the job by PMI with exit code %d", code), true})
		return "", false, nil
	case "spawn":
		return "cmd=spawn_result rc=-1 msg=not_supported", false, nil
	case "publish_name", "unpublish_name", "lookup_name":
		return "cmd=" + strings.TrimSuffix(cmd, "_name") + "_result rc=-1 msg=not_supported", false, nil
	}
	return "", false, malformed(fmt.Sprintf("got cmd=%.80q, want a command of PMI-1", m["cmd"]))
}

// putLocked stores a value, and returns the rest of the answer.
func (s *Server) putLocked(c *client, m message) string {
	k, v := m["key"], m["value"]
	_, twice := s.values[k]
	switch size := len(k) + len(v); {
	case m["kvsname"] != s.name:
		return "rc=-1 msg=kvsname_not_found"
	case k == "" || len(k) > maxKey || len(v) > maxValue:
		return "rc=-1 msg=length_out_of_bounds"
	case twice:
		return "rc=-1 msg=duplicate_key"
	case c.stored+size > maxStored:
		return "rc=-1 msg=no_room"
	default:
		c.stored += size
		s.values[k] = v
		return "rc=0 msg=success"
	}
}

// getLocked looks up a value, and returns the rest of the answer.
func (s *Server) getLocked(m message) string {
	if m["kvsname"] != s.name {
		return "rc=-1 msg=kvsname_not_found"
	}
	v, ok := s.values[m["key"]]
	if !ok {
		return "rc=-1 msg=key_not_found"
	}
	return "rc=0 msg=success value=" + v
}

// checkBarrierLocked ends the barrier if all ranks are in it. If a rank that is gone can never
// enter it, the ranks that wait cannot go on.
func (s *Server) checkBarrierLocked() {
	if s.waiting == len(s.ranks) {
		s.waiting = 0
		for i := range s.ranks {
			c := &s.ranks[i]
			c.state = active
			// A rank that does not read its answers must not stop the others. The write ends with
			// the connection at the latest.
			go c.conn.Write([]byte("cmd=barrier_out\n"))
		}
	}
	if s.waiting == 0 {
		return
	}
	for rank := range s.ranks {
		if s.ranks[rank].state == gone {
			f := Failure{Rank: rank, Code: 1, Text: "did not enter the PMI barrier in which other ranks waited"}
			if s.signalled {
				f.Code = 0
			}
			s.failLocked(f)
			return
		}
	}
}

// lost notes that a rank sends no more requests, although it has not finalized: it has sent what is
// no request, or its connection has ended.
func (s *Server) lost(rank int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.ranks[rank]
	was := c.state
	if was == waiting {
		s.waiting--
	}
	c.state = gone
	var bad malformed
	switch {
	case errors.As(err, &bad):
		s.failLocked(Failure{Rank: rank, Code: 1, Text: "sent an invalid PMI request: " + string(bad)})
	case !s.signalled && (was == active || was == waiting):
		s.failLocked(Failure{Rank: rank, Code: 1, Text: "ended its PMI connection without cmd=finalize, which MPI_Finalize sends"})
	}
	s.checkBarrierLocked()
}

// failLocked keeps the first cause for which the ranks cannot go on.
func (s *Server) failLocked(f Failure) {
	if s.failure == nil && !s.stopped {
		s.failure = &f
		close(s.failed)
	}
}
