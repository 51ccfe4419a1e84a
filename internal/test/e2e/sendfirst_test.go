//go:build unix

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// The sizes in the tests are just below and above testCredit and testSendBuffer. A message takes
// envelopeBytes in addition to its data.
const (
	testCredit     = 512 << 10
	testSendBuffer = 1 << 20
	envelopeBytes  = 256
)

func protocols() map[string]string {
	return map[string]string{"auto": "auto", "push": "eager", "pull": "rendezvous"}
}

func TestBothRanksMaySendFirstUpToTheSendBuffer(t *testing.T) {
	leak.Check(t)
	for name, drive := range protocols() {
		for _, bytes := range []int{1, testCredit - 1, testCredit, testCredit + 1,
			testCredit - envelopeBytes - 1, testCredit - envelopeBytes, testCredit - envelopeBytes + 1,
			testSendBuffer - envelopeBytes - 1, testSendBuffer - envelopeBytes} {
			t.Run(fmt.Sprintf("%s/%d", name, bytes), func(t *testing.T) {
				err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
					ctx, cancel := context.WithTimeout(ctx, limit)
					defer cancel()
					if err := comm.Send(ctx, c, 1-c.Rank(), 0, pattern(c.Rank(), bytes)); err != nil {
						return err
					}
					return receive(ctx, c, bytes)
				}, comm.WithParameters(comm.Parameters{Protocol: drive, Credit: testCredit, SendBuffer: testSendBuffer}))
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Each rank sends one byte more than fits without a receive, and only then receives. Both sends
// must wait, as in MPI's standard mode, and the error of rank 0 must describe the cycle.
func TestSendsBeyondTheSendBufferReportTheCycle(t *testing.T) {
	t.Parallel()
	for name, drive := range protocols() {
		for _, bytes := range []int{testSendBuffer - envelopeBytes + 1, testSendBuffer + 1} {
			t.Run(fmt.Sprintf("%s/%d", name, bytes), func(t *testing.T) {
				t.Parallel()
				texts := make([]string, 2)
				err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
					// The time limit of rank 0 begins when both ranks are here.
					if err := c.Barrier(ctx); err != nil {
						return err
					}
					// Rank 1 has a longer deadline, so it can still answer questions when rank 0's
					// call ends.
					limited, cancel := context.WithTimeout(ctx, time.Duration(1+9*c.Rank())*time.Second)
					defer cancel()
					err := comm.Send(limited, c, 1-c.Rank(), 0, pattern(c.Rank(), bytes))
					if c.Rank() == 1 {
						if err != nil { // rank 0 receives by now
							return err
						}
						return receive(ctx, c, bytes)
					}
					if !errors.Is(err, fault.Timeout) {
						return fmt.Errorf("got %v, want a %q", err, fault.Timeout)
					}
					texts[0] = err.Error()
					if err := receive(ctx, c, bytes); err != nil {
						return err
					}
					return comm.Send(ctx, c, 1, 0, pattern(0, bytes))
				}, comm.WithParameters(comm.Parameters{Protocol: drive, Credit: testCredit, SendBuffer: testSendBuffer}))
				if err != nil {
					t.Error(err)
				}
				for _, part := range []string{"wait in a cycle: rank 0 in send ", ", waits for rank 1 in send "} {
					if !strings.Contains(texts[0], part) {
						t.Errorf("rank 0 was told %q, want %q in it", texts[0], part)
					}
				}
				if n := strings.Count(texts[0], " at sendfirst_test.go:"); n < 2 {
					t.Errorf("%d places in %q, want both", n, texts[0])
				}
			})
		}
	}
}

// The memory for unreceived messages must be bounded, and no message may be lost.
func TestUnreceivedSendsAreBoundedByCreditAndSendBuffer(t *testing.T) {
	leak.Check(t)
	for name, drive := range protocols() {
		for _, bytes := range []int{1000, 100_000} {
			t.Run(fmt.Sprintf("%s/%d", name, bytes), func(t *testing.T) {
				var accepted int
				counted := make(chan struct{})
				err := comm.Local(2, func(ctx context.Context, c *comm.Comm) (err error) {
					if c.Rank() == 0 {
						defer close(counted)
						accepted, err = sendUntilItWaits(ctx, c, bytes)
						return err
					}
					<-counted
					for i := range accepted {
						got := make([]byte, bytes)
						if _, err := comm.Recv(ctx, c, 0, 0, got); err != nil {
							return fmt.Errorf("message %d of %d: %w", i, accepted, err)
						}
						if got[0] != byte(i) {
							return fmt.Errorf("message %d is number %d", i, got[0])
						}
					}
					return nil
				}, comm.WithParameters(comm.Parameters{Protocol: drive, Credit: testCredit, SendBuffer: testSendBuffer}))
				if err != nil {
					t.Error(err)
				}
				least, most := testSendBuffer/(bytes+envelopeBytes), (testSendBuffer+testCredit)/bytes+1
				if accepted < least || accepted > most {
					t.Errorf("%d messages of %d bytes were accepted, want %d to %d", accepted, bytes, least, most)
				}
			})
		}
	}
}

// sendUntilItWaits sends numbered messages until Send would wait, and returns their number.
func sendUntilItWaits(ctx context.Context, c *comm.Comm, bytes int) (n int, err error) {
	for ; ; n++ {
		limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		b := make([]byte, bytes)
		b[0] = byte(n)
		err := comm.Send(limited, c, 1, 0, b)
		cancel()
		if errors.Is(err, fault.Timeout) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func pattern(rank, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + rank)
	}
	return b
}

func receive(ctx context.Context, c *comm.Comm, n int) error {
	got := make([]byte, n)
	if _, err := comm.Recv(ctx, c, 1-c.Rank(), 0, got); err != nil {
		return err
	}
	if !bytes.Equal(got, pattern(1-c.Rank(), n)) {
		return fmt.Errorf("rank %d got other bytes than were sent", c.Rank())
	}
	return nil
}
