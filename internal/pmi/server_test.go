package pmi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// mpich402 is what a program that is linked with Debian's MPICH 4.0.2 sends as rank 0 of 2 in
// MPI_Init and MPI_Finalize, with shorter values, and what a Server answers.
const mpich402 = `> cmd=init pmi_version=1 pmi_subversion=1
< cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
> cmd=get_maxes
< cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=768
> cmd=get_appnum
< cmd=appnum appnum=7
> cmd=get_my_kvsname
< cmd=my_kvsname kvsname=job-x
> cmd=get kvsname=job-x key=PMI_process_mapping
< cmd=get_result rc=0 msg=success value=(vector,(0,1,2))
> cmd=barrier_in
< cmd=barrier_out
> cmd=put kvsname=job-x key=-bcast-1-0 value=2F6465762F73686D2F6D70
< cmd=put_result rc=0 msg=success
> cmd=barrier_in
< cmd=barrier_out
> cmd=put kvsname=job-x key=-allgather-shm-1-0 value=20670A74CCF9ABD7
< cmd=put_result rc=0 msg=success
> cmd=barrier_in
< cmd=barrier_out
> cmd=get kvsname=job-x key=-allgather-shm-1-1
< cmd=get_result rc=0 msg=success value=of-rank-1
> cmd=barrier_in
< cmd=barrier_out
> cmd=finalize
< cmd=finalize_ack
`

// A rankConn is a rank's end of its connection to a Server.
type rankConn struct {
	net.Conn
	in *bufio.Reader
}

// served returns a Server for the ranks of two programs, 7 and 8, and the ranks' connections.
func served(size int) (*Server, []*rankConn) {
	apps := []int{7}
	for len(apps) < size {
		apps = append(apps, 8)
	}
	s := NewServer("job-x", apps, make([]int, len(apps)))
	ranks := make([]*rankConn, size)
	for rank := range ranks {
		near, far := net.Pipe()
		ranks[rank] = &rankConn{near, bufio.NewReader(near)}
		go s.Serve(rank, far)
	}
	return s, ranks
}

// send sends a line.
func (c *rankConn) send(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatalf("%.80q: %v", line, err)
	}
}

// receive reads a line, and compares it.
func (c *rankConn) receive(t *testing.T, want string) {
	t.Helper()
	if got, err := c.in.ReadString('\n'); got != want+"\n" {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// ask sends a request, and compares the answer.
func (c *rankConn) ask(t *testing.T, request, want string) {
	t.Helper()
	c.send(t, request)
	c.receive(t, want)
}

// receiveNothing checks that there is neither an answer nor the end of the connection.
func (c *rankConn) receiveNothing(t *testing.T) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Hour))
	if line, err := c.in.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %q, %v, want nothing", line, err)
	}
}

func TestServerAnswersMPICH(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ranks := served(2)
		ranks[1].ask(t, "cmd=get_appnum", "cmd=appnum appnum=8")
		ranks[1].ask(t, "cmd=get_universe_size", "cmd=universe_size size=2")
		ranks[1].ask(t, "cmd=put kvsname=job-x key=-allgather-shm-1-1 value=of-rank-1", "cmd=put_result rc=0 msg=success")
		for line := range strings.Lines(mpich402) {
			line = strings.TrimSuffix(line, "\n")
			if want, ok := strings.CutPrefix(line, "< "); ok {
				ranks[0].receive(t, want)
				continue
			}
			if ranks[0].send(t, line[2:]); line == "> cmd=barrier_in" {
				synctest.Wait() // rank 0 waits
				ranks[1].ask(t, "cmd=barrier_in", "cmd=barrier_out")
			}
		}
		if _, err := ranks[0].in.ReadByte(); err != io.EOF {
			t.Errorf("after finalize: got %v, want EOF", err)
		}
		ranks[1].ask(t, "cmd=finalize", "cmd=finalize_ack")
		synctest.Wait()
		if f := s.Failure(); f != nil {
			t.Errorf("got the failure %+v, want none", f)
		}
	})
}

// The client of this package must understand the Server, too.
func TestSessionsMeetAtAServer(t *testing.T) {
	const size = 3
	s := NewServer("job-x", make([]int, size), make([]int, size))
	var work sync.WaitGroup
	for rank := range size {
		near, far := net.Pipe()
		work.Go(func() { s.Serve(rank, far) })
		work.Go(func() {
			c := newSession(near)
			c.rank, c.size = rank, size
			if err := c.open(t.Context()); err != nil {
				t.Errorf("rank %d: %v", rank, err)
				near.Close()
				return
			}
			if c.local != (layout{rank, size}) {
				t.Errorf("rank %d: got the layout %v, want %d of %d", rank, c.local, rank, size)
			}
			own := ""
			if rank == 0 {
				own = "1,ab,,4000,n1"
			}
			if got, err := c.Exchange(t.Context(), own); got != "1,ab,,4000,n1" || err != nil {
				t.Errorf("rank %d: got %q, %v", rank, got, err)
			}
			if err := c.Close(); err != nil {
				t.Errorf("rank %d: close: %v", rank, err)
			}
		})
	}
	work.Wait()
	if f := s.Failure(); f != nil {
		t.Errorf("got the failure %+v, want none", f)
	}
}

func TestServerRefusesWhatItDoesNotHave(t *testing.T) {
	_, ranks := served(1)
	defer ranks[0].Close()
	key, value := strings.Repeat("k", maxKey), strings.Repeat("v", maxValue)
	for _, tc := range []struct{ request, want string }{
		{"cmd=init pmi_version=2 pmi_subversion=0", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1"},
		{"cmd=get kvsname=job-x key=PMI_dead_processes", "cmd=get_result rc=-1 msg=key_not_found"},
		{"cmd=get kvsname=job-y key=PMI_process_mapping", "cmd=get_result rc=-1 msg=kvsname_not_found"},
		{"cmd=put kvsname=job-y key=a value=b", "cmd=put_result rc=-1 msg=kvsname_not_found"},
		{"cmd=put kvsname=job-x value=b", "cmd=put_result rc=-1 msg=length_out_of_bounds"},
		{"cmd=put kvsname=job-x key=" + key + "k value=b", "cmd=put_result rc=-1 msg=length_out_of_bounds"},
		{"cmd=put kvsname=job-x key=a value=v" + value, "cmd=put_result rc=-1 msg=length_out_of_bounds"},
		{"cmd=put kvsname=job-x key=PMI_process_mapping value=b", "cmd=put_result rc=-1 msg=duplicate_key"},
		{"cmd=put kvsname=job-x key=" + key + " value=" + value, "cmd=put_result rc=0 msg=success"},
		{"cmd=put kvsname=job-x key=" + key + " value=again", "cmd=put_result rc=-1 msg=duplicate_key"},
		{"cmd=get kvsname=job-x key=" + key, "cmd=get_result rc=0 msg=success value=" + value},
		{"mcmd=spawn\nnprocs=1\nexecname=prog\nargcnt=0\nendcmd", "cmd=spawn_result rc=-1 msg=not_supported"},
		{"cmd=publish_name service=a port=b", "cmd=publish_result rc=-1 msg=not_supported"},
		{"cmd=unpublish_name service=a", "cmd=unpublish_result rc=-1 msg=not_supported"},
		{"cmd=lookup_name service=a", "cmd=lookup_result rc=-1 msg=not_supported"},
	} {
		ranks[0].ask(t, tc.request, tc.want)
		if len(tc.want) >= 1023 {
			t.Errorf("%.80q: got an answer of %d bytes, want fewer than 1023", tc.request, len(tc.want))
		}
	}
}

func TestServerBoundsWhatARankStores(t *testing.T) {
	_, ranks := served(2)
	defer ranks[0].Close()
	defer ranks[1].Close()
	value := strings.Repeat("v", maxValue-4)
	for i := range maxStored / maxValue {
		ranks[0].ask(t, fmt.Sprintf("cmd=put kvsname=job-x key=%04d value=%s", i, value), "cmd=put_result rc=0 msg=success")
	}
	ranks[0].ask(t, "cmd=put kvsname=job-x key=more value="+value, "cmd=put_result rc=-1 msg=no_room")
	ranks[1].ask(t, "cmd=put kvsname=job-x key=more value="+value, "cmd=put_result rc=0 msg=success")
}

func TestServerFindsTheRankThatKeepsTheOthersFromGoingOn(t *testing.T) {
	const waits = "1 cmd=barrier_in" // rank 1 waits for all
	for name, tc := range map[string]struct {
		steps string // a rank and a line that it sends, or its end; separated by semicolons
		want  Failure
	}{
		"abort":                      {"2 cmd=abort exitcode=7", Failure{2, 7, "aborted the job by PMI with exit code 7", true}},
		"abort, a large code":        {"2 cmd=abort exitcode=538532623", Failure{2, 15, "aborted the job by PMI with exit code 15", true}},
		"abort with 0":               {"2 cmd=abort exitcode=0", Failure{2, 1, "aborted the job by PMI with exit code 1", true}},
		"abort without a code":       {"2 cmd=abort", Failure{2, 1, "aborted the job by PMI with exit code 1", true}},
		"abort with a text":          {"2 cmd=abort exitcode=7 error_msg=Fatal error buf=1 buf=2", Failure{2, 7, "aborted the job by PMI with exit code 7", true}},
		"abort while others wait":    {waits + ";0 cmd=abort exitcode=9", Failure{0, 9, "aborted the job by PMI with exit code 9", true}},
		"no message":                 {"0 hello", Failure{0, 1, `sent an invalid PMI request: got "hello", want cmd=NAME`, false}},
		"unknown command":            {"0 cmd=hello", Failure{0, 1, `sent an invalid PMI request: got cmd="hello", want a command of PMI-1`, false}},
		"endless line":               {"0 cmd=" + strings.Repeat("x", maxLine), Failure{0, 1, "sent an invalid PMI request: got a line of more than 4096 bytes", false}},
		"request in a barrier":       {waits + ";1 cmd=get_maxes", Failure{1, 1, `sent an invalid PMI request: got cmd="get_maxes", want none before cmd=barrier_out`, false}},
		"end without finalize":       {"2 cmd=init pmi_version=1;2 end", Failure{2, 1, "ended its PMI connection without cmd=finalize, which MPI_Finalize sends", false}},
		"end in a barrier":           {waits + ";1 end", Failure{1, 1, "ended its PMI connection without cmd=finalize, which MPI_Finalize sends", false}},
		"end in a request":           {"2 mcmd=spawn;2 cmd=x;2 end", Failure{}},
		"end before another waits":   {"2 end;" + waits, Failure{2, 1, "did not enter the PMI barrier in which other ranks waited", false}},
		"end while another waits":    {waits + ";2 end", Failure{2, 1, "did not enter the PMI barrier in which other ranks waited", false}},
		"finalize while others wait": {waits + ";0 cmd=finalize", Failure{0, 1, "did not enter the PMI barrier in which other ranks waited", false}},
		"the first cause":            {"2 cmd=abort exitcode=7;0 hello;1 cmd=abort exitcode=8", Failure{2, 7, "aborted the job by PMI with exit code 7", true}},
		"nobody waits for the end":   {"0 end;1 cmd=init pmi_version=1;1 cmd=finalize;2 end", Failure{}},
		"nobody is left":             {"0 end;1 end;2 end", Failure{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, ranks := served(3)
				for _, c := range ranks {
					defer c.Close()
					go io.Copy(io.Discard, c)
				}
				for step := range strings.SplitSeq(tc.steps, ";") {
					c, line := ranks[step[0]-'0'], step[2:]
					if line == "end" {
						c.Close()
					} else {
						io.WriteString(c, line+"\n") // the Server may close the connection
					}
					synctest.Wait()
				}
				select {
				case <-s.Failed():
					if got := s.Failure(); *got != tc.want {
						t.Errorf("got %+v, want %+v", *got, tc.want)
					}
				default:
					if tc.want != (Failure{}) {
						t.Errorf("got no failure, want %+v", tc.want)
					}
				}
			})
		})
	}
}

// After a signal ranks may end without finalize, but nothing else ends ranks that cannot go on.
func TestASignalExcusesOnlyTheEndOfAConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		request string // of rank 1, after rank 0 has ended
		want    *Failure
	}{
		"none":    {"cmd=get_maxes", nil},
		"abort":   {"cmd=abort exitcode=7", &Failure{1, 7, "aborted the job by PMI with exit code 7", true}},
		"barrier": {"cmd=barrier_in", &Failure{0, 0, "did not enter the PMI barrier in which other ranks waited", false}},
		"garbage": {"hello", &Failure{1, 1, `sent an invalid PMI request: got "hello", want cmd=NAME`, false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, ranks := served(2)
				ranks[0].ask(t, "cmd=get_maxes", "cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=768")
				s.Signalled()
				ranks[0].Close()
				synctest.Wait()
				ranks[1].send(t, tc.request)
				synctest.Wait()
				got := s.Failure()
				if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
					t.Errorf("got %+v, want %+v", got, tc.want)
				}
				s.Stop()
				s.Close()
			})
		})
	}
}

// After Stop, the ends of ranks must not count as failures, because the launcher ends them.
func TestAStoppedServerFindsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ranks := served(2)
		ranks[0].ask(t, "cmd=get_maxes", "cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=768")
		s.Stop()
		ranks[0].Close()
		ranks[1].send(t, "cmd=barrier_in")
		s.Close()
		synctest.Wait()
		if f := s.Failure(); f != nil {
			t.Errorf("got %+v, want no failure", f)
		}
	})
}

// An aborting rank of MPICH waits for an answer, and goes on if it gets one or if the connection
// ends. So the Server must neither answer nor close the connection.
func TestARankThatAbortsIsKeptWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ranks := served(1)
		ranks[0].send(t, "cmd=abort exitcode=7")
		<-s.Failed()
		ranks[0].send(t, "cmd=get_maxes")
		ranks[0].receiveNothing(t)
		s.Close()
	})
}

// A rank that has ended in a barrier is not in the barrier any more.
func TestABarrierNeedsAllRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ranks := served(3)
		ranks[1].send(t, "cmd=barrier_in")
		ranks[1].Close()
		synctest.Wait()
		ranks[0].send(t, "cmd=barrier_in")
		ranks[2].send(t, "cmd=barrier_in")
		ranks[0].receiveNothing(t)
		s.Close()
	})
}

// A rank that does not read must not keep the others in the barrier.
func TestARankThatDoesNotReadStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ranks := served(3)
		ranks[0].send(t, "cmd=barrier_in")
		ranks[1].send(t, "cmd=barrier_in")
		ranks[2].ask(t, "cmd=barrier_in", "cmd=barrier_out")
		ranks[1].receive(t, "cmd=barrier_out")
		s.Stop()
		s.Close()
	})
}

// FuzzServe checks that a rank can neither stop a Server by what it sends, nor make it store
// without bounds, and that each answer is a message that MPICH's client can read.
func FuzzServe(f *testing.F) {
	var requests strings.Builder
	for line := range strings.Lines(mpich402) {
		if request, ok := strings.CutPrefix(line, "> "); ok {
			requests.WriteString(request)
		}
	}
	f.Add([]byte(requests.String()))
	f.Add([]byte("mcmd=spawn\nnprocs=1\nendcmd\ncmd=abort exitcode=-1\ncmd=get_maxes\n"))
	f.Add([]byte("cmd=put kvsname=job-x key=a value=b\ncmd=put kvsname=job-x key=a\ncmd=lookup_name\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := NewServer("job-x", []int{0}, []int{0})
		near, far := net.Pipe()
		var work sync.WaitGroup
		work.Go(func() { s.Serve(0, far) })
		work.Go(func() {
			near.Write(sent) // the Server may close the connection
			near.SetReadDeadline(time.Unix(1, 0))
		})
		in := bufio.NewReaderSize(near, 1024)
		for {
			line, err := in.ReadSlice('\n')
			if err == bufio.ErrBufferFull {
				t.Fatalf("got an answer of more than %d bytes: %.80q", len(line), line)
			}
			if err != nil {
				break
			}
			if _, err := parse(strings.TrimSuffix(string(line), "\n")); err != nil {
				t.Errorf("answer: %v", err)
			}
		}
		near.Close()
		work.Wait()
		stored := 0
		for k, v := range s.values {
			if k != mappingKey {
				stored += len(k) + len(v)
			}
		}
		if stored > maxStored {
			t.Errorf("got %d bytes stored, want at most %d", stored, maxStored)
		}
		if s.waiting != 0 {
			t.Errorf("%d ranks wait, want none", s.waiting)
		}
	})
}
