package mesh

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// spareDescriptors is the number of file descriptors that a rank needs beside its connections: for
// listeners, for the goroutines that wait for events, and for unfinished handshakes.
const spareDescriptors = 8

// checkDescriptors fails if this process may not open enough file descriptors for the job. Without
// this check, the shortage would appear later, as broken links on some rank.
func (m *Mesh) checkDescriptors() error {
	if m.cfg.Listener == nil {
		return nil
	}
	open, _ := os.ReadDir("/dev/fd") // absent on some systems; then the count is 0
	if err := descriptorShortage(descriptorLimit(), len(open), m.cfg.Size, m.joinServer != nil); err != nil {
		return m.failure(fault.Exhausted, err)
	}
	return nil
}

// descriptorShortage returns an error if the limit on file descriptors is too low for a rank. The
// arguments are the limit (negative if it is unknown), the number of open descriptors, the number
// of ranks in the job, and whether this rank serves the address exchange. descriptorShortage counts
// the control links and as many data links, because the algorithms for many ranks use no more. A
// rank that serves the address exchange holds one connection to each other rank at once, before it
// has any link.
func descriptorShortage(limit, open, size int, joinServer bool) error {
	links := min(size-1, 2*bits.Len(uint(size-1)))
	want := open + 2*links + spareDescriptors
	all := want - links + size - 1
	if joinServer {
		want = max(want, open+size-1+spareDescriptors)
	}
	if limit < 0 || limit >= want {
		return nil
	}
	return fmt.Errorf("file descriptors: got a limit of %d, want at least %d on this rank of a job of %d ranks, or %d if it exchanges messages with all ranks (%d are open now): raise ulimit -n",
		limit, want, size, all, open)
}

// lacksDescriptors reports whether err says that this process, or this host, has no file descriptor
// left.
func lacksDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// shortage returns the failure that blames this rank for its lack of file descriptors. It does not
// blame the rank that cannot be reached.
func (m *Mesh) shortage(err error) *fault.Error {
	e := &fault.Error{Kind: fault.Exhausted, Op: "connect", Rank: m.cfg.Rank}
	e.Peers = []fault.Peer{{Rank: m.cfg.Rank, Host: m.cfg.Host}}
	e.Err = fmt.Errorf("file descriptors: the limit of %d is reached, and up to %d connections to other ranks are needed: raise ulimit -n: %w",
		descriptorLimit(), 2*(m.cfg.Size-1), err)
	return e
}

// acceptShortage handles a lack of file descriptors that has lasted in Accept for shortageTime. It
// ends the start at once, and all ranks that can be reached blame this rank. Once all ranks have
// started, it does nothing: the mux has logged the lack, and the job may need no further
// connection.
func (m *Mesh) acceptShortage(err error) {
	if m.control.started() {
		return
	}
	e := m.shortage(err)
	if m.joinServer != nil {
		m.joinServer.end(e)
	}
	m.progress.update(func(a *startProgress) {
		if a.joining && a.endJoin != nil {
			a.endJoin(e)
		}
	})
	m.Announce(e)
}

// A lasting measures how long file descriptors have been short.
type lasting struct{ first, last time.Time }

// observe records that descriptors are short now, and returns for how long they have been. A lack
// that was last observed more than two shortageTimes ago counts as ended, because a rank dials a
// missing control link more often than that.
func (s *lasting) observe(now time.Time) time.Duration {
	if now.Sub(s.last) > 2*shortageTime {
		s.first = now
	}
	s.last = now
	return now.Sub(s.first)
}
