package ps

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
)

// alone runs worker on the only rank of a job, which serves, too.
func alone(t *testing.T, worker func(ctx context.Context, cl *Client) error, opts ...Option) {
	t.Helper()
	leak.Check(t)
	err := comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		return Run(ctx, c, Everywhere(), worker, nil, opts...)
	})
	if err != nil {
		t.Error(err)
	}
}

// A server must not take memory for a body that no request of its kind has.
func TestTheHeadOfARequestBoundsItsBody(t *testing.T) {
	alone(t, func(ctx context.Context, cl *Client) error {
		w, err := Declare[float32](ctx, cl, "w", 20_000)
		if err != nil {
			return err
		}
		table, err := DeclareTable[float32](ctx, cl, "t", 1000)
		if err != nil {
			return err
		}
		x := &session{s: cl.n.server}
		const large = message.MaxBody
		for _, c := range []struct {
			what string
			q    message.Request
			ok   bool
		}{
			{"push", message.Request{Kind: message.Push, DType: tensor.Float32, Tensor: w.d.id, Size: 80_000}, true},
			{"long push", message.Request{Kind: message.Push, DType: tensor.Float32, Tensor: w.d.id, Size: large}, false},
			{"push to an unknown part", message.Request{Kind: message.Push, DType: tensor.Float32, Tensor: 9, Size: defaultPart}, true},
			{"long push to an unknown part", message.Request{Kind: message.Push, DType: tensor.Float32, Tensor: 9, Size: large}, false},
			{"rows", message.Request{Kind: message.Push, DType: tensor.Float32, Tensor: table.d.id, Rows: 5000, Size: 5000 * 4008}, true},
			{"other rows", message.Request{Kind: message.Push, DType: tensor.Float32, Tensor: table.d.id, Rows: 1, Size: large}, false},
			{"pull of too many rows", message.Request{Kind: message.Pull, DType: tensor.Float32, Tensor: table.d.id, Rows: large / 8, Size: large}, false},
			{"declaration", message.Request{Kind: message.Declare, Size: 1 << 20}, true},
			{"long declaration", message.Request{Kind: message.Declare, Size: large}, false},
			{"long creation", message.Request{Kind: message.Create, Size: large}, false},
			{"restoration", message.Request{Kind: message.Load, Size: 1 << 20}, true},
			{"long restoration", message.Request{Kind: message.Load, Size: large}, false},
			{"long name of a directory", message.Request{Kind: message.OpenSnapshot, Size: large}, false},
			{"close with a body", message.Request{Kind: message.Close, Size: large}, false},
			{"save with a body", message.Request{Kind: message.Save, Tensor: w.d.id, Size: large}, false},
		} {
			j, body, err := x.requestHead(c.q.Append(nil))
			if ok := err == nil; ok != c.ok || ok && len(body) != c.q.Size || !ok && !errors.Is(err, fault.Mismatch) {
				t.Errorf("%s: got %d bytes and error %v, want acceptance %v", c.what, len(body), err, c.ok)
			}
			if j != nil {
				j.release()
			}
		}
		return nil
	})
}

func TestAReplyWithRowsIsBounded(t *testing.T) {
	alone(t, func(ctx context.Context, cl *Client) error {
		table, err := DeclareTable[float32](ctx, cl, "t", 1<<20)
		if err != nil {
			return err
		}
		p := cl.n.server.parts[partKey{table.d.id, 0}]
		for rows, want := range map[int]string{255: "", 256: "got 256 rows, want at most 255", message.MaxBody / 8: "rows, want at most 255"} {
			q := message.Request{Kind: message.Pull, DType: tensor.Float32, Rows: rows}
			if got := p.check(&q, rows*indexSize); !strings.Contains(got, want) || want == "" && got != "" {
				t.Errorf("%d rows: got %q, want %q", rows, got, want)
			}
		}
		return nil
	})
}

func TestPartsThatDoNotMakeUpTheTensorAreRefused(t *testing.T) {
	alone(t, func(ctx context.Context, cl *Client) error {
		spec := message.Spec{Name: "w", DType: tensor.Float32, Size: 100, Mean: true, Initial: "zeros"}
		for _, c := range []struct {
			what  string
			size  int
			parts []message.PartSpec
		}{
			{"none", 100, nil},
			{"too few elements", 100, []message.PartSpec{{Count: 50}}},
			{"too many elements", 100, []message.PartSpec{{Count: 50}, {First: 50, Count: 1 << 40}}},
			{"a gap", 100, []message.PartSpec{{Count: 40}, {First: 60, Count: 60}}},
			{"a part that is too large", 1 << 40, []message.PartSpec{{Count: 1 << 40}}},
			{"more elements than a tensor may have", 1 << 50, []message.PartSpec{{Count: 1 << 50}}},
		} {
			spec.Size = c.size
			list := message.PartList{Tensor: 5, Parts: c.parts}
			for i := range c.parts {
				c.parts[i].Servers = []int{0}
			}
			err := cl.n.server.create(&job{body: message.AppendCreate(nil, &spec, &list)})
			if !errors.Is(err, fault.Mismatch) {
				t.Errorf("%s: got %v, want fault.Mismatch", c.what, err)
			}
		}
		return nil
	}, WithMemory(1000))
}

func TestATensorOfTooManyPartsIsRefused(t *testing.T) {
	alone(t, func(ctx context.Context, cl *Client) error {
		for n, want := range map[int]string{16*maxParts + 1: fmt.Sprintf("parts of w: got %d, want at most %d", maxParts+1, maxParts), maxElements: "WithPart"} {
			_, err := Declare[float32](ctx, cl, "w", n)
			if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), want) {
				t.Errorf("%d elements: got %v, want fault.Misuse with %q", n, err, want)
			}
		}
		_, err := Declare[float32](ctx, cl, "w", 100) // the refused declarations have left nothing
		return err
	}, WithPart(minPart), WithMemory(1000))
}

func TestTheWeightOfATableHasABound(t *testing.T) {
	for rows, want := range map[int64]int64{0: 64, 1: 64, 1000: 64_000, 1 << 50: 1 << 50, 1 << 58: 1 << 50, math.MaxInt64: 1 << 50} {
		if got := tableWeight(&message.Spec{Table: true, DType: tensor.Float32, Size: 16, Rows: rows}); got != want {
			t.Errorf("%d rows of 64 bytes: got %d, want %d", rows, got, want)
		}
	}
}

// A dense tensor lies on one of two servers. Each of them gets half of a table beside it all the same.
func TestATableOfUnknownSizeIsSpread(t *testing.T) {
	leak.Check(t)
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		return Run(ctx, c, Servers(2), func(ctx context.Context, cl *Client) error {
			if _, err := Declare[float32](ctx, cl, "w", 1<<20); err != nil {
				return err
			}
			table, err := DeclareTable[float32](ctx, cl, "t", 1)
			if err != nil {
				return err
			}
			parts := make(map[int]int)
			for _, p := range table.d.parts {
				parts[p.link.rank]++
			}
			if parts[1] != tablePartsPerServer || parts[2] != tablePartsPerServer {
				t.Errorf("parts of the table by rank: got %v, want %d on each server", parts, tablePartsPerServer)
			}
			return nil
		}, nil, WithPart(4<<20))
	})
	if err != nil {
		t.Error(err)
	}
}

// A worker makes the bodies of pushes to a slow server only as far as the credit allows.
func TestCopiesOfPushesAreBoundedByTheCredit(t *testing.T) {
	const rows, width, credit, pushes = 100, 10, 20_000, 50
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		slow := optimizer.Func{Name: "slow", Float32: func([]float32, []float32, [][]float32, int64) { <-free }}
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			return Run(ctx, c, Servers(1), func(ctx context.Context, cl *Client) error {
				w, err := Declare[float32](ctx, cl, "w", rows*width, Asynchronous(), Optimizer(slow), Compress(tensor.BF16))
				if err != nil {
					return err
				}
				table, err := DeclareTable[float32](ctx, cl, "t", width, Asynchronous(), Optimizer(slow))
				if err != nil {
					return err
				}
				indices, values := make([]int64, rows), make([]float32, rows*width)
				for i := range indices {
					indices[i] = int64(i)
				}
				var hs []*Handle
				for range pushes {
					hs = append(hs, w.IPush(values), table.IPush(indices, values))
				}
				synctest.Wait() // until the server has what the credit allows
				made := 0
				cl.lead.mu.Lock()
				for _, c := range cl.lead.calls {
					made += len(c.body)
				}
				cl.lead.mu.Unlock()
				if made == 0 || made > credit {
					t.Errorf("got %d bytes of copies, want at most the credit of %d", made, credit)
				}
				close(free)
				return WaitAll(ctx, hs...)
			}, nil, WithCredit(credit), WithOptimizers(slow))
		})
		if err != nil {
			t.Error(err)
		}
	})
}
