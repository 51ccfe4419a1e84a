package launch

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/internal/pmi"
)

// A readCloser is a connection in fake time. Like a socket, it has the method CloseRead.
type readCloser struct{ net.Conn }

func (c readCloser) CloseRead() error { return c.SetReadDeadline(time.Unix(1, 0)) }

// A process that has left the job, and still holds the descriptor PMI_FD, must not delay the end of
// the job.
func TestTheEndOfAJobDoesNotWaitForTheHolderOfAPMIConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &run{pmi: pmi.NewServer("job-x", []int{0}, []int{0})}
		held, served := net.Pipe()
		defer held.Close()
		r.copiers.Go(func() { r.pmi.Serve(0, readCloser{served}) })
		synctest.Wait() // Serve waits for a request
		began := time.Now()
		r.drain()
		if d := time.Since(began); d != 0 {
			t.Errorf("the end of the job took %v, want no time", d)
		}
	})
}

// What a rank has sent still counts after CloseRead, although another process holds the connection.
func TestAPMIConnectionIsReadToItsEnd(t *testing.T) {
	conn, held, err := socketPair("PMI_FD")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := io.WriteString(held, "cmd=get_appnum\ncmd=abort exitcode=7\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.UnixConn).CloseRead(); err != nil {
		t.Fatal(err)
	}
	s := pmi.NewServer("job-x", []int{0}, []int{0})
	s.Serve(0, conn)
	if f := s.Failure(); f == nil || f.Code != 7 {
		t.Errorf("got the failure %+v, want one with exit code 7", f)
	}
}
