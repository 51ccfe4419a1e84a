package optim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/optim"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/transport/wires"
)

const size = 1000

// gradient fills grad with the gradient of a worker in a step.
func gradient(grad []float32, param, step, worker int) {
	for i := range grad {
		grad[i] = float32((i*7+step*13+worker*31+param*17)%101-50) / 37
	}
}

func firstValues(param int) []float32 {
	v := make([]float32, size)
	for i := range v {
		v[i] = float32(i%9+param) / 8
	}
	return v
}

// serial makes the same steps in one process, with the mean of the workers in the order of their ranks.
func serial(o optimizer.Adam, param, steps, workers int) []float32 {
	v, grad, mean := firstValues(param), make([]float32, size), make([]float32, size)
	slots := [][]float32{make([]float32, size), make([]float32, size)}
	for step := range steps {
		for w := range workers {
			gradient(grad, param, step, w)
			for i, g := range grad {
				if w == 0 {
					mean[i] = g
				} else {
					mean[i] += g
				}
			}
		}
		for i := range mean {
			mean[i] /= float32(workers)
		}
		o.Update32(v, mean, slots, int64(step+1))
	}
	return v
}

// train runs work on all ranks that work, with an Optimizer's coordinator.
func train(workers, servers int, wire string, work func(ctx context.Context, cl *ps.Client, co *coordinator.Coordinator) error, opts ...coordinator.Option) error {
	return comm.Local(workers+servers, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, ps.Servers(servers), func(ctx context.Context, cl *ps.Client) error {
			co, err := coordinator.Start(ctx, cl.Workers(), opts...)
			if err != nil {
				return err
			}
			return errors.Join(work(ctx, cl, co), co.Close(ctx))
		}, nil, ps.WithPart(640))
	}, comm.WithTransport(wires.All()...), comm.WithTransportName(wire))
}

// parametersOf returns n parameters with their first values.
func parametersOf(n int, side optim.Way, topK float64) []optim.Parameter[float32] {
	var list []optim.Parameter[float32]
	for i := range n {
		list = append(list, optim.Parameter[float32]{Name: fmt.Sprintf("w%d", i), Value: firstValues(i), Gradient: make([]float32, size), Way: side, TopK: topK})
	}
	return list
}

func other(s optim.Way) optim.Way {
	if s == optim.Ring {
		return optim.Servers
	}
	return optim.Ring
}

// trainWithChanges makes steps. Worker 0 changes the side of each parameter at the given period.
func trainWithChanges(ctx context.Context, cl *ps.Client, opt *optim.Optimizer[float32], params []optim.Parameter[float32], steps, period int) (changes int, err error) {
	last, _ := opt.Way(params[0].Name)
	for step := range steps {
		for i, p := range slices.Backward(params) {
			gradient(p.Gradient, i, step, cl.Workers().Rank())
			if i%2 == 0 {
				opt.Ready(p.Name)
			}
		}
		if cl.Workers().Rank() == 0 && period > 0 && step%period == 0 {
			for _, p := range params {
				side, _ := opt.Way(p.Name)
				if err := opt.Move(p.Name, other(side)); err != nil {
					return 0, err
				}
			}
		}
		if err := opt.Step(ctx); err != nil {
			return 0, err
		}
		if now, _ := opt.Way(params[0].Name); now != last {
			last = now
			changes++
		}
	}
	return changes, nil
}

func TestAdamWithTwentyChangesHasTheBitsOfASerialTraining(t *testing.T) {
	const steps, period = 60, 3
	adam := optimizer.Adam{Rate: 0.01}
	for _, wire := range []string{"memory", "tcp"} {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			err := train(2, 2, wire, func(ctx context.Context, cl *ps.Client, co *coordinator.Coordinator) error {
				params := parametersOf(3, optim.Ring, 0)
				params[1].Way = optim.Servers
				if cl.Workers().Rank() == 1 {
					clear(params[2].Value) // the values are those of worker 0
				}
				opt, err := optim.New(ctx, co, cl, adam, params)
				if err != nil {
					return err
				}
				changes, err := trainWithChanges(ctx, cl, opt, params, steps, period)
				if err != nil {
					return err
				}
				if changes != steps/period {
					return fmt.Errorf("changes: got %d, want %d", changes, steps/period)
				}
				for i, p := range params {
					if want := serial(adam, i, steps, 2); !slices.Equal(p.Value, want) {
						return fmt.Errorf("%s: got %v…, want %v…", p.Name, p.Value[:3], want[:3])
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestTheResidualOfTopKChangesSides(t *testing.T) {
	leak.Check(t)
	result := func(side optim.Way, period int) (values []float32) {
		err := train(2, 1, "memory", func(ctx context.Context, cl *ps.Client, co *coordinator.Coordinator) error {
			params := parametersOf(1, side, 0.5)
			// One part has all elements, so both sides choose the same ones.
			params[0].Value, params[0].Gradient = params[0].Value[:160], params[0].Gradient[:160]
			opt, err := optim.New(ctx, co, cl, optimizer.Adam{Rate: 0.01}, params)
			if err != nil {
				return err
			}
			_, err = trainWithChanges(ctx, cl, opt, params, 24, period)
			if cl.Workers().Rank() == 0 {
				values = params[0].Value
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return values
	}
	want := result(optim.Ring, 0)
	for _, side := range []optim.Way{optim.Ring, optim.Servers} {
		if got := result(side, 2); !slices.Equal(got, want) {
			t.Errorf("from %v: got %v…, want %v…", side, got[:3], want[:3])
		}
	}
}

func TestWrongUseOfAnOptimizerIsRefused(t *testing.T) {
	err := train(2, 1, "memory", func(ctx context.Context, cl *ps.Client, co *coordinator.Coordinator) error {
		for what, spoil := range map[string]func(p []optim.Parameter[float32]){
			"a name twice":       func(p []optim.Parameter[float32]) { p[1].Name = p[0].Name },
			"another length":     func(p []optim.Parameter[float32]) { p[1].Gradient = p[1].Gradient[1:] },
			"one slice twice":    func(p []optim.Parameter[float32]) { p[1].Gradient = p[1].Value },
			"an unknown side":    func(p []optim.Parameter[float32]) { p[1].Way = 9 },
			"TopK larger than 1": func(p []optim.Parameter[float32]) { p[1].TopK = 2 },
		} {
			params := parametersOf(2, optim.Ring, 0)
			spoil(params)
			if _, err := optim.New(ctx, co, cl, optimizer.SGD{Rate: 1}, params); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("%s: got %v, want misuse", what, err)
			}
		}
		opt, err := optim.New(ctx, co, cl, optimizer.SGD{Rate: 1}, parametersOf(1, optim.Ring, 0))
		if err != nil {
			return err
		}
		for name, side := range map[string]optim.Way{"table": optim.Ring, "w0": optim.Auto} {
			if err := opt.Move(name, side); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("move %s to %v: got %v, want misuse", name, side, err)
			}
		}
		if err := opt.Move("w0", optim.Servers); (err == nil) != (cl.Workers().Rank() == 0) {
			return fmt.Errorf("move on worker %d: got %v", cl.Workers().Rank(), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAStepThatIsInterruptedGoesOn(t *testing.T) {
	leak.Check(t)
	err := train(2, 1, "memory", func(ctx context.Context, cl *ps.Client, co *coordinator.Coordinator) error {
		params := parametersOf(2, optim.Servers, 0)
		opt, err := optim.New(ctx, co, cl, optimizer.SGD{Rate: 1}, params)
		if err != nil {
			return err
		}
		if cl.Workers().Rank() == 0 {
			over, cancel := context.WithCancel(ctx)
			cancel()
			if err := opt.Step(over); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "parameter w0") {
				return fmt.Errorf("a step that is cancelled: got %v, want the context's error", err)
			}
		}
		if err := cl.Workers().Barrier(ctx); err != nil {
			return err
		}
		if err := opt.Step(ctx); err != nil {
			return err
		}
		if _, steps := opt.Way("w1"); steps != 1 {
			return fmt.Errorf("steps: got %d, want 1", steps)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestALostServerEndsTheStepsWithAnErrorThatNamesTheParameter(t *testing.T) {
	leak.Check(t)
	var got [2]error
	stop := make(chan struct{})
	_ = comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(context.WithoutCancel(ctx), c, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			co, err := coordinator.Start(ctx, cl.Workers())
			if err != nil {
				return err
			}
			defer co.Close(ctx)
			params := parametersOf(2, optim.Servers, 0)
			opt, err := optim.New(ctx, co, cl, optimizer.Adam{Rate: 1}, params)
			if err != nil {
				return err
			}
			_, err = trainWithChanges(ctx, cl, opt, params, 3, 1)
			if err != nil { // the other worker is a step ahead, and has ended the server
				got[c.Rank()] = err
				return err
			}
			if c.Rank() == 0 {
				close(stop)
			}
			for range 10_000 {
				if _, err = trainWithChanges(ctx, cl, opt, params, 1, 1); err != nil {
					break
				}
			}
			got[c.Rank()] = err
			return err
		}, func(ctx context.Context, s *ps.Server) error {
			ctx, cancel := context.WithCancel(ctx)
			go func() { <-stop; cancel() }()
			return s.Serve(ctx)
		})
	})
	for r, err := range got {
		if err == nil || !strings.Contains(err.Error(), "parameter w") {
			t.Errorf("worker %d: got %v, want an error that names a parameter", r, err)
		}
	}
}
