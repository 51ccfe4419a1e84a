package pmi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The transcripts are those of real process managers, of one rank each. A line begins with > if the
// process sends it, and with < if the process manager does. The last line is the answer to
// finalize.
const (
	hydra402 = `> cmd=init pmi_version=1 pmi_subversion=1
< cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
> cmd=get_my_kvsname
< cmd=my_kvsname kvsname=kvs_11663_0_2051993872_vm
> cmd=get kvsname=kvs_11663_0_2051993872_vm key=PMI_process_mapping
< cmd=get_result rc=0 msg=success value=(vector,(0,1,4))
> cmd=put kvsname=kvs_11663_0_2051993872_vm key=tutti-rank-0 value=1,ab,,4000,n1
< cmd=put_result rc=0 msg=success
> cmd=barrier_in
< cmd=barrier_out
> cmd=get kvsname=kvs_11663_0_2051993872_vm key=tutti-rank-0
< cmd=get_result rc=0 msg=success value=1,ab,,4000,n1
> cmd=finalize
< cmd=finalize_ack
`
	// Hydra since 4.2 writes rc first, and found=TRUE last.
	hydra421 = `> cmd=init pmi_version=1 pmi_subversion=1
< cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
> cmd=get_my_kvsname
< cmd=my_kvsname rc=0 kvsname=kvs_1_0_7_vm
> cmd=get kvsname=kvs_1_0_7_vm key=PMI_process_mapping
< cmd=get_result rc=0 value=(vector,(0,2,2)) found=TRUE
> cmd=barrier_in
< cmd=barrier_out rc=0
> cmd=get kvsname=kvs_1_0_7_vm key=tutti-rank-0
< cmd=get_result rc=0 value=1,ab,,4000,n1 found=TRUE
> cmd=finalize
< cmd=finalize_ack rc=0
`
	// Slurm's plug-in pmi2 names the store by the job's step.
	slurm = `> cmd=init pmi_version=1 pmi_subversion=1
< cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1
> cmd=get_my_kvsname
< cmd=my_kvsname rc=0 kvsname=5.0
> cmd=get kvsname=5.0 key=PMI_process_mapping
< cmd=get_result rc=1 msg=key_PMI_process_mapping_not_found
> cmd=barrier_in
< cmd=barrier_out rc=0
> cmd=get kvsname=5.0 key=tutti-rank-0
< cmd=get_result rc=0 value=1,ab,,4000,n1
> cmd=finalize
< cmd=finalize_ack rc=0
`
	// With mpiexec -pmi-port the first request of a process names the process.
	portPrologue = `> cmd=initack pmiid=2
< cmd=initack
< cmd=set size=4
< cmd=set rank=2
< cmd=set debug=0
`
)

// answer does what a transcript says. It returns an error if the process sends anything else.
func answer(conn net.Conn, transcript string) error {
	in := bufio.NewReader(conn)
	for line := range strings.Lines(transcript) {
		if answer, ok := strings.CutPrefix(line, "< "); ok {
			if _, err := conn.Write([]byte(answer)); err != nil {
				return err
			}
			continue
		}
		got, err := in.ReadString('\n')
		if want := strings.TrimPrefix(line, "> "); got != want {
			return fmt.Errorf("process manager: got %q, %v, want %q", got, err, want)
		}
	}
	return nil
}

// serve starts a process manager that follows a transcript, and then keeps the connection open. The
// function done returns the result of answer.
func serve(transcript string) (conn net.Conn, done func() error) {
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- answer(far, transcript) }()
	return near, func() error {
		err := <-served
		far.Close()
		return err
	}
}

func TestTranscripts(t *testing.T) {
	for name, tc := range map[string]struct {
		transcript            string
		rank                  int
		port                  bool
		localRank, localSize  int
		published, wantResult string
	}{
		"Hydra 4.0.2, rank 0":        {hydra402, 0, false, 0, 4, "1,ab,,4000,n1", "1,ab,,4000,n1"},
		"Hydra 4.2.1, rank 3":        {hydra421, 3, false, 1, 2, "", "1,ab,,4000,n1"},
		"Hydra by PMI_PORT, rank 2":  {portPrologue + hydra421, 2, true, 0, 2, "", "1,ab,,4000,n1"},
		"Slurm, layout is not known": {slurm, 3, false, -1, -1, "", "1,ab,,4000,n1"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, served := serve(tc.transcript)
			c := newSession(conn)
			if tc.port {
				if err := c.identify(t.Context(), "2"); err != nil {
					t.Fatal(err)
				}
			} else {
				c.rank, c.size = tc.rank, 4
			}
			if err := c.open(t.Context()); err != nil {
				t.Fatal(err)
			}
			rank, size, localRank, localSize := c.Layout()
			if got, want := [...]int{rank, size, localRank, localSize}, [...]int{tc.rank, 4, tc.localRank, tc.localSize}; got != want {
				t.Errorf("layout: got %v, want %v", got, want)
			}
			got, err := c.Exchange(t.Context(), tc.published)
			if got != tc.wantResult || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, tc.wantResult)
			}
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if err := served(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpenRefusesBadAnswers(t *testing.T) {
	const begin = "> cmd=init pmi_version=1 pmi_subversion=1\n"
	for name, tc := range map[string]struct{ transcript, want string }{
		"refusal":       {begin + "< cmd=response_to_init rc=-1 msg=no\n", `rc=-1 "no"`},
		"version":       {begin + "< cmd=response_to_init rc=0 pmi_version=2\n", `version "2"`},
		"other command": {begin + "< cmd=barrier_out\n", "want cmd=response_to_init"},
		"no command":    {begin + "< rc=0\n", "want cmd="},
		"a key twice":   {begin + "< cmd=response_to_init rc=0 rc=1\n", "each key once"},
		"endless line":  {begin + "< cmd=" + strings.Repeat("x", maxLine) + "\n", "more than 4096 bytes"},
		"no store":      {begin + "< cmd=response_to_init rc=0 pmi_version=1\n> cmd=get_my_kvsname\n< cmd=my_kvsname rc=0\n", "no kvsname"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, served := serve(tc.transcript)
			c := newSession(conn)
			c.size = 1
			_, err := c.opened(c.open(t.Context()))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error that says %q", err, tc.want)
			}
			if err := served(); err != nil && name != "endless line" { // nobody reads that line to its end
				t.Error(err)
			}
		})
	}
}

func TestIdentifyRefusesBadNumbers(t *testing.T) {
	for _, line := range []string{"cmd=set size=0", "cmd=set size=65537", "cmd=set rank=1", "cmd=put_result rc=0"} {
		conn, served := serve("> cmd=initack pmiid=2\n< cmd=initack\n< " + line + "\n")
		if err := newSession(conn).identify(t.Context(), "2"); err == nil {
			t.Errorf("%q: got nil, want an error", line)
		}
		if err := served(); err != nil {
			t.Error(err)
		}
	}
	c := newSession(nil)
	c.rank, c.size = 2, 2
	if err := c.open(t.Context()); err == nil || !strings.Contains(err.Error(), "rank 2 of 2") {
		t.Errorf("got %v, want an error that says rank 2 of 2", err)
	}
}

// exchanging returns a session that is ready for Exchange, with a process manager that follows a
// transcript.
func exchanging(transcript string) (*Session, func() error) {
	conn, served := serve(transcript)
	c := newSession(conn)
	c.rank, c.size, c.kvs = 1, 2, "k"
	return c, served
}

func TestExchangeEndsWhenTheProcessManagerEnds(t *testing.T) {
	c, served := exchanging("> cmd=barrier_in\n")
	go served()
	if _, err := c.Exchange(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("got %v, want EOF", err)
	}
	c.Close()
}

// A rank that has ended before it called Exchange leaves the others in the barrier, and Hydra does
// not end them.
func TestExchangeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, served := exchanging("> cmd=barrier_in\n")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begin := time.Now()
		_, err := c.Exchange(ctx, "")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Hour {
			t.Errorf("got %v after %v, want the end of the context after 1h", err, time.Since(begin))
		}
		// Because Exchange has failed, Close does not send finalize and waits for nothing.
		if err := c.Close(); err != nil || time.Since(begin) != time.Hour {
			t.Errorf("close: got %v after %v, want nil at once", err, time.Since(begin))
		}
		if err := served(); err != nil {
			t.Error(err)
		}
	})
}

func TestASilentProcessManagerIsNotWaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, served := exchanging("> cmd=barrier_in\n< cmd=barrier_out\n> cmd=get kvsname=k key=tutti-rank-0\n")
		begin := time.Now()
		_, err := c.Exchange(t.Context(), "")
		if err == nil || !strings.Contains(err.Error(), "within 30s") || time.Since(begin) != answerLimit {
			t.Errorf("got %v after %v, want an error after %v", err, time.Since(begin), answerLimit)
		}
		c.Close()
		served()
	})
	synctest.Test(t, func(t *testing.T) {
		c, served := exchanging("> cmd=barrier_in\n< cmd=barrier_out\n> cmd=get kvsname=k key=tutti-rank-0\n< cmd=get_result rc=0 value=v\n> cmd=finalize\n")
		if v, err := c.Exchange(t.Context(), ""); v != "v" || err != nil {
			t.Fatalf("got %q, %v", v, err)
		}
		begin := time.Now()
		if err := c.Close(); err == nil || time.Since(begin) != finalizeLimit {
			t.Errorf("close: got %v after %v, want an error after %v", err, time.Since(begin), finalizeLimit)
		}
		served()
	})
}

func TestAMissingValueIsAnError(t *testing.T) {
	c, served := exchanging("> cmd=barrier_in\n< cmd=barrier_out\n> cmd=get kvsname=k key=tutti-rank-0\n< cmd=get_result rc=-1 msg=key_tutti-rank-0_not_found\n")
	if v, err := c.Exchange(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "not_found") {
		t.Errorf("got %q, %v, want an error", v, err)
	}
	if err := served(); err != nil {
		t.Error(err)
	}
	c.Close()
}

func TestLayout(t *testing.T) {
	for _, tc := range []struct {
		mapping    string
		rank, size int
		want       layout
	}{
		{"(vector,(0,1,4))", 2, 4, layout{2, 4}},
		{"(vector,(0,2,2))", 2, 4, layout{0, 2}},
		{"(vector,(0,2,2))", 3, 4, layout{1, 2}},
		{"(vector,(0,1,2),(1,1,1))", 3, 5, layout{2, 4}}, // n1 n1 n2 n1 n1
		{"(vector,(0,1,2),(1,1,1))", 2, 5, layout{0, 1}},
		{"(vector,(0,4,1))", 3, 4, layout{0, 1}},
		{"", 0, 1, layout{-1, -1}},
		{"(vector)", 0, 1, layout{-1, -1}},
		{"(vector,(0,1,1)", 0, 1, layout{-1, -1}},
		{"(vector,(0,1))", 0, 1, layout{-1, -1}},
		{"(vector,(0,0,1))", 0, 1, layout{-1, -1}},
		{"(vector,(0,1,99999999))", 0, 1, layout{-1, -1}},
	} {
		if got := layoutOf(tc.mapping, tc.rank, tc.size); got != tc.want {
			t.Errorf("%s, rank %d of %d: got %v, want %v", tc.mapping, tc.rank, tc.size, got, tc.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for line := range strings.Lines(hydra402 + slurm + portPrologue) {
		f.Add(strings.TrimSuffix(line[2:], "\n"))
	}
	f.Add("cmd=get_result value=(vector,(0,1,2),(1,1,1))")
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parse(line)
		if err != nil {
			return
		}
		if m["cmd"] == "" {
			t.Errorf("%q has no command", line)
		}
		const size = 5
		l := layoutOf(m["value"], size-1, size)
		if l != (layout{-1, -1}) && (l.rank < 0 || l.rank >= l.size || l.size > size) {
			t.Errorf("%q: layout %v", line, l)
		}
	})
}
