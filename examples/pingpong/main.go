// Command pingpong sends messages to and fro between two ranks, the point-to-point
// way: rank 0 serves, rank 1 returns whatever comes, of whatever size.
//
//	bin/tuttirun -np 2 bin/pingpong
//
// It shows Send and Recv, Probe for a message whose size is not known, tags that
// mean something, and how a program tells errors apart. For figures to rely on,
// take tuttibench -op pingpong.
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

// What the tags of messages mean.
const (
	ping = 1 // return it
	stop = 2 // the game has ended
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	switch err := job(ctx, os.Stdout); {
	case errors.Is(err, fault.PeerLost):
		fmt.Fprintln(os.Stderr, "pingpong: my partner has left the table:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "pingpong:", err)
		os.Exit(1)
	}
}

// job is one rank's part, from Init to Close.
func job(ctx context.Context, out io.Writer) (err error) {
	c, err := comm.Init(ctx, comm.WithTransport(wires.All()...))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	return run(ctx, c, out)
}

// run has ranks 0 and 1 play; others look on.
func run(ctx context.Context, c *comm.Comm, out io.Writer) error {
	switch {
	case c.Size() < 2:
		return errors.New("it takes two: bin/tuttirun -np 2 bin/pingpong")
	case c.Rank() == 0:
		return measure(ctx, c, out)
	case c.Rank() == 1:
		return echo(ctx, c)
	}
	return nil
}

// rounds is how often a message of each size goes there and back.
const rounds = 20

// measure plays balls of several sizes, checks what comes back, and ends the game.
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
				return fmt.Errorf("%d bytes came back changed, or as %d", size, st.Bytes)
			}
		}
		fmt.Fprintf(out, "%7d bytes there and back, %d times: %v each\n", size, rounds, (total / rounds).Round(100*time.Nanosecond))
	}
	return comm.Send(ctx, c, 1, stop, []byte(nil))
}

// echo returns every ball until the game is over.
func echo(ctx context.Context, c *comm.Comm) error {
	var buf []byte
	for {
		st, err := c.Probe(ctx, 0, comm.AnyTag) // the message stays
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
