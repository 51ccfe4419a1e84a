// Command pingpong sends messages between two ranks and times them: rank 0 sends, and
// rank 1 returns every message, whatever its size.
//
//	bin/tuttirun -np 2 bin/pingpong
//
// It shows Send and Recv, Probe for a message of unknown size, tags, and how a program
// distinguishes errors. For reliable figures use tuttibench -op pingpong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport/wires"
)

// The tags of messages.
const (
	ping = 1 // rank 1 returns the message
	stop = 2 // rank 1 ends
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	switch err := job(ctx, os.Stdout); {
	case errors.Is(err, fault.PeerLost):
		fmt.Fprintln(os.Stderr, "pingpong: the other rank is lost:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "pingpong:", err)
		os.Exit(1)
	}
}

// job runs one rank, from Init to Close.
func job(ctx context.Context, out io.Writer) (err error) {
	c, err := comm.Init(ctx, comm.WithTransport(wires.All()...))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	return run(ctx, c, out)
}

// run makes rank 0 send and rank 1 return messages. Other ranks do nothing.
func run(ctx context.Context, c *comm.Comm, out io.Writer) error {
	switch {
	case c.Size() < 2:
		return fmt.Errorf("ranks: got %d, want 2: bin/tuttirun -np 2 bin/pingpong", c.Size())
	case c.Rank() == 0:
		return measure(ctx, c, out)
	case c.Rank() == 1:
		return echo(ctx, c)
	}
	return nil
}

// rounds is the number of round trips of a message of each size.
const rounds = 20

// measure sends messages of several sizes, and verifies and times their return. It then tells rank
// 1 to stop.
func measure(ctx context.Context, c *comm.Comm, out io.Writer) error {
	for _, size := range []int{0, 8, 4 << 10, 1 << 20} {
		sent, back := make([]byte, size), make([]byte, size)
		var total time.Duration
		for i := range rounds {
			for j := range sent {
				sent[j] = byte(i + j)
			}
			begin := time.Now()
			if err := comm.Send(ctx, c, 1, ping, sent); err != nil {
				return err
			}
			st, err := comm.Recv(ctx, c, 1, ping, back)
			if err != nil {
				return err
			}
			total += time.Since(begin)
			if st.Bytes != size || string(back) != string(sent) {
				return fmt.Errorf("message of %d bytes: got %d bytes back, want the same bytes", size, st.Bytes)
			}
		}
		fmt.Fprintf(out, "%7d bytes there and back, %d times: %v each\n", size, rounds, (total / rounds).Round(100*time.Nanosecond))
	}
	return comm.Send(ctx, c, 1, stop, []byte(nil))
}

// echo returns every message until it receives one with the tag stop.
func echo(ctx context.Context, c *comm.Comm) error {
	var buf []byte
	for {
		st, err := c.Probe(ctx, 0, comm.AnyTag) // the message stays in the queue
		if err != nil {
			return err
		}
		buf = append(buf[:0], make([]byte, st.Bytes)...)
		if _, err := comm.Recv(ctx, c, st.Source, st.Tag, buf); err != nil {
			return err
		}
		if st.Tag == stop {
			return nil
		}
		if err := comm.Send(ctx, c, st.Source, ping, buf); err != nil {
			return err
		}
	}
}
