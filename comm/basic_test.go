package comm_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/comm"
)

func TestTokenTravelsAroundTheRing(t *testing.T) {
	for n := 1; n <= 5; n++ {
		err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
			buf := []int{c.Rank()}
			for range n {
				next, prev := (c.Rank()+1)%n, (c.Rank()+n-1)%n
				in := make([]int, 1)
				if _, err := comm.SendRecv(ctx, c, next, 1, buf, prev, 1, in); err != nil {
					return err
				}
				buf = in
			}
			if buf[0] != c.Rank() {
				return fmt.Errorf("rank %d got %d back", c.Rank(), buf[0])
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBothRanksSendFirstAtEverySize(t *testing.T) {
	for _, protocol := range []string{"auto", "eager", "rendezvous"} {
		for _, size := range []int{0, 1, 1000, 64 << 10, 64<<10 + 1, 1 << 20, 5<<20 + 3} {
			err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
				out := make([]byte, size)
				for i := range out {
					out[i] = byte(i*7 + c.Rank())
				}
				if err := comm.Send(ctx, c, 1-c.Rank(), 3, out); err != nil {
					return err
				}
				in := make([]byte, size)
				st, err := comm.Recv(ctx, c, 1-c.Rank(), 3, in)
				if err != nil {
					return err
				}
				if st.Bytes != size || st.Source != 1-c.Rank() || st.Tag != 3 {
					return fmt.Errorf("status %+v", st)
				}
				for i := range in {
					if in[i] != byte(i*7+1-c.Rank()) {
						return fmt.Errorf("byte %d is %d", i, in[i])
					}
				}
				return nil
			}, comm.WithParameters(comm.Parameters{Protocol: protocol}))
			if err != nil {
				t.Fatalf("drive %s size %d: %v", protocol, size, err)
			}
		}
	}
}

func TestAllReduceSums(t *testing.T) {
	for n := 1; n <= 5; n++ {
		for _, count := range []int{0, 1, n - 1, n, 1000, 100003} {
			err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
				for range 3 {
					buf := make([]float32, count)
					for i := range buf {
						buf[i] = float32(c.Rank() + i%10)
					}
					if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
						return err
					}
					for i := range buf {
						if want := float32(n*(n-1)/2 + n*(i%10)); buf[i] != want {
							return fmt.Errorf("element %d is %v, want %v", i, buf[i], want)
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Fatalf("%d ranks, %d elements: %v", n, count, err)
			}
		}
	}
}
