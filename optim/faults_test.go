package optim_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/optim"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
)

// loseRank trains on two workers with a change of sides after each step, and loses a rank while worker
// 0 makes the given step. It returns the errors and the values of the workers.
func loseRank(t *testing.T, servers, replicas, victim, atStep, steps int) (errs [2]error, params [2][]optim.Parameter[float32]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ended, end := context.WithCancel(ctx)
	end()
	kill := make(chan struct{})
	var over sync.WaitGroup // the ranks that are not lost
	over.Add(2 + servers - 1)
	opts := []ps.Option{ps.WithPart(640), ps.WithReplicas(replicas), ps.WithLogger(slog.New(slog.DiscardHandler))}
	_ = comm.Local(2+servers, func(_ context.Context, c *comm.Comm) error {
		defer over.Wait() // so that the end of Local's context comes last
		if c.Rank() == victim {
			go func() {
				<-kill
				c.Close(ended) // as a process does that ends
			}()
		} else {
			defer over.Done()
		}
		if c.Rank() >= 2 {
			return ps.Serve(ctx, c, opts...)
		}
		cl, err := ps.Connect(ctx, c, opts...)
		if err != nil {
			return err
		}
		work := func() error {
			co, err := coordinator.Start(ctx, cl.Workers())
			if err != nil {
				return err
			}
			defer co.Close(ctx)
			list := parametersOf(2, optim.Servers, 0)
			list[1].Way = optim.Ring
			params[c.Rank()] = list
			opt, err := optim.New(ctx, co, cl, optimizer.Adam{Rate: 0.01}, list)
			if err != nil {
				return err
			}
			for step := range steps {
				if c.Rank() == 0 && step == atStep {
					close(kill)
				}
				for i, p := range list {
					gradient(p.Gradient, i, step, c.Rank())
					if side, _ := opt.Way(p.Name); c.Rank() == 0 {
						if err := opt.Move(p.Name, other(side)); err != nil {
							return err
						}
					}
				}
				if err := opt.Step(ctx); err != nil {
					return err
				}
			}
			return nil
		}
		errs[c.Rank()] = work()
		return errors.Join(errs[c.Rank()], cl.Close(ctx))
	}, comm.WithTimeout(50*time.Second))
	return errs, params
}

func TestChangesLoseNothingWithAServerThatHasReplicas(t *testing.T) {
	const steps = 30
	for atStep := range 5 {
		t.Run(fmt.Sprint(atStep), func(t *testing.T) {
			leak.Check(t)
			errs, params := loseRank(t, 3, 2, 2+atStep%3, 5+atStep, steps)
			for w := range errs {
				if errs[w] != nil {
					t.Fatalf("worker %d: %v", w, errs[w])
				}
				for i, p := range params[w] {
					if want := serial(optimizer.Adam{Rate: 0.01}, i, steps, 2); !slices.Equal(p.Value, want) {
						t.Errorf("worker %d, %s: got %v…, want %v…", w, p.Name, p.Value[:3], want[:3])
					}
				}
			}
		})
	}
}

func TestChangesEndWithTheNameOfALostRank(t *testing.T) {
	for victim, what := range map[int]string{1: "a worker", 2: "a server without replicas"} {
		t.Run(what, func(t *testing.T) {
			leak.Check(t)
			errs, _ := loseRank(t, 2, 1, victim, 5, 10_000)
			named := errors.Is(errs[0], fault.PeerLost) || errors.Is(errs[0], fault.Closed) // as the rank says goodbye or not
			if !named || !strings.Contains(errs[0].Error(), fmt.Sprintf("rank %d", victim)) || !strings.Contains(errs[0].Error(), "parameter w") {
				t.Errorf("got %v, want an error that names rank %d and a parameter", errs[0], victim)
			}
		})
	}
}
