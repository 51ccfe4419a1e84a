package comm_test

import (
	"context"
	"errors"
	"fmt"

	"gonum.org/v1/gonum/mat"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

func ExampleSend() {
	const tag = 1
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return comm.Send(ctx, c, 1, tag, []float32{1, 2, 3})
		}
		buf := make([]float32, 10)
		st, err := comm.Recv(ctx, c, 0, tag, buf)
		if err != nil {
			return err
		}
		fmt.Println(buf[:comm.Count[float32](st)])
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1 2 3]
	// <nil>
}

// Rank 0 receives messages in the order of their arrival, from any rank.
func ExampleRecv_anySource() {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() > 0 {
			if err := comm.Send(ctx, c, 0, c.Rank(), []int{c.Rank() * 100}); err != nil {
				return err
			}
			// Without the Barrier, a rank might close while rank 0 still waits for any source.
			return c.Barrier(ctx)
		}
		sum := 0
		for range c.Size() - 1 {
			buf := make([]int, 1)
			st, err := comm.Recv(ctx, c, comm.AnySource, comm.AnyTag, buf)
			if err != nil {
				return err
			}
			sum += st.Source*1000 + buf[0]
		}
		fmt.Println(sum)
		return c.Barrier(ctx)
	})
	fmt.Println(err)
	// Output:
	// 6600
	// <nil>
}

func ExampleRecv() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return comm.Send(ctx, c, 1, 0, []int64{1, 2, 3})
		}
		_, err := comm.Recv(ctx, c, 0, 0, make([]int64, 2))
		fmt.Println(errors.Is(err, fault.Misuse)) // the message is longer than the buffer
		return nil
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

func ExampleComm_Probe() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return comm.Send(ctx, c, 1, 5, []byte("of a length that rank 1 does not know"))
		}
		st, err := c.Probe(ctx, 0, comm.AnyTag) // the message stays in the queue
		if err != nil {
			return err
		}
		buf := make([]byte, st.Bytes)
		if _, err := comm.Recv(ctx, c, st.Source, st.Tag, buf); err != nil {
			return err
		}
		fmt.Printf("tag %d: %s\n", st.Tag, buf)
		return nil
	})
	fmt.Println(err)
	// Output:
	// tag 5: of a length that rank 1 does not know
	// <nil>
}

func ExampleComm_IProbe() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		_, early, err := c.IProbe(1-c.Rank(), 0)
		if err != nil {
			return err
		}
		if err := c.Barrier(ctx); err != nil { // rank 1 sends only after this Barrier
			return err
		}
		if c.Rank() == 0 {
			return comm.Send(ctx, c, 1, 0, []bool{true})
		}
		for found := false; !found; {
			if _, found, err = c.IProbe(0, 0); err != nil {
				return err
			}
		}
		fmt.Println("before:", early, "after: true")
		_, err = comm.Recv(ctx, c, 0, 0, make([]bool, 1))
		return err
	})
	fmt.Println(err)
	// Output:
	// before: false after: true
	// <nil>
}

// Every rank sends to the next rank and receives from the rank before it.
func ExampleSendRecv() {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		n, me := c.Size(), c.Rank()
		in := make([]int, 1)
		if _, err := comm.SendRecv(ctx, c, (me+1)%n, 0, []int{me}, (me+n-1)%n, 0, in); err != nil {
			return err
		}
		fmt.Println("rank", me, "got", in)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 got [3]
	// rank 1 got [0]
	// rank 2 got [1]
	// rank 3 got [2]
	// <nil>
}

func ExampleISend() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		peer := 1 - c.Rank()
		out, in := []int{c.Rank()}, make([]int, 1)
		// Compute between the start and the wait, and leave both buffers alone.
		send, recv := comm.ISend(c, peer, 0, out), comm.IRecv(c, peer, 0, in)
		if err := comm.WaitAll(ctx, send, recv); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "got", in)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 got [1]
	// rank 1 got [0]
	// <nil>
}

func ExampleIRecv() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			return comm.Send(ctx, c, 0, 0, []int{42})
		}
		buf := make([]int, 1)
		recv := comm.IRecv(c, 1, 0, buf)
		st, err := recv.Wait(ctx)
		fmt.Println(buf, "from rank", st.Source)
		return err
	})
	fmt.Println(err)
	// Output:
	// [42] from rank 1
	// <nil>
}

func ExampleWaitAll() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() > 0 {
			return comm.Send(ctx, c, 0, 0, []int{c.Rank()})
		}
		got := make([]int, 2)
		err := comm.WaitAll(ctx, comm.IRecv(c, 1, 0, got[:1]), comm.IRecv(c, 2, 0, got[1:]))
		fmt.Println(got)
		return err
	})
	fmt.Println(err)
	// Output:
	// [1 2]
	// <nil>
}

func ExampleWaitAny() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		switch token := make([]int, 1); c.Rank() {
		case 1: // sends nothing until rank 0 tells it to
			if _, err := comm.Recv(ctx, c, 0, 0, token); err != nil {
				return err
			}
			fallthrough
		case 2:
			return comm.Send(ctx, c, 0, 0, token)
		}
		buf := make([]int, 2)
		requests := []*comm.Request{comm.IRecv(c, 1, 0, buf[:1]), comm.IRecv(c, 2, 0, buf[1:])}
		i, st, err := comm.WaitAny(ctx, requests...)
		if err != nil {
			return err
		}
		fmt.Println("request", i, "is done, by rank", st.Source)
		if err := comm.Send(ctx, c, 1, 0, buf[:1]); err != nil {
			return err
		}
		_, err = requests[0].Wait(ctx)
		return err
	})
	fmt.Println(err)
	// Output:
	// request 1 is done, by rank 2
	// <nil>
}

// The ranks sum the middle column of a gonum matrix. The other columns stay unchanged.
func ExampleAllReduceView() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		m := mat.NewDense(2, 3, []float64{1, 2, 3, 4, 5, 6})
		column := m.Slice(0, 2, 1, 2).(*mat.Dense)
		if err := comm.AllReduceView(ctx, c, tensor.Dense(column), comm.Sum); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(mat.Formatted(m))
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// ⎡ 1   4   3⎤
	// ⎣ 4  10   6⎦
	// <nil>
}

func ExampleBroadcastView() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		v := mat.NewVecDense(3, nil)
		if c.Rank() == 0 {
			v = mat.NewVecDense(3, []float64{1, 2, 3})
		}
		if err := comm.BroadcastView(ctx, c, tensor.Vec(v), 0); err != nil {
			return err
		}
		if c.Rank() == 1 {
			fmt.Println(v.RawVector().Data)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1 2 3]
	// <nil>
}

// A column, whose elements are not adjacent in one rank's memory, arrives as a row in another
// rank's memory.
func ExampleSendView() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			table := []int32{1, 2, 3, 4, 5, 6} // 3 rows of 2 elements
			column, err := tensor.Strided(table, 3, 1, 2)
			if err != nil {
				return err
			}
			return comm.SendView(ctx, c, 1, 0, column)
		}
		row := make([]int32, 3)
		err := comm.RecvView(ctx, c, 0, 0, tensor.Slice(row))
		fmt.Println(row)
		return err
	})
	fmt.Println(err)
	// Output:
	// [1 3 5]
	// <nil>
}

func ExampleRecvView() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return comm.SendView(ctx, c, 1, 0, tensor.Slice([]int32{7, 8}))
		}
		table := []int32{1, 2, 3, 4} // 2 rows of 2 elements
		column, err := tensor.Strided(table, 2, 1, 2)
		if err != nil {
			return err
		}
		err = comm.RecvView(ctx, c, 0, 0, column)
		fmt.Println(table)
		return err
	})
	fmt.Println(err)
	// Output:
	// [7 2 8 4]
	// <nil>
}

// Several goroutines may probe and receive messages whose sizes they do not know.
func ExampleMProbe() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			return comm.Send(ctx, c, 0, 7, []float32{1, 2, 3})
		}
		st, recv, err := comm.MProbe[float32](ctx, c, comm.AnySource, comm.AnyTag)
		if err != nil {
			return err
		}
		buf := make([]float32, comm.Count[float32](st))
		if err := recv(ctx, buf); err != nil {
			return err
		}
		fmt.Println(buf, "from rank", st.Source)
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1 2 3] from rank 1
	// <nil>
}

func ExampleIMProbe() {
	err := comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		sent := comm.ISend(c, 0, 7, []int{42})
		for {
			_, recv, err := comm.IMProbe[int](c, 0, 7)
			if err != nil {
				return err
			}
			if recv == nil { // nothing has arrived yet
				continue
			}
			buf := make([]int, 1)
			err = recv(ctx, buf)
			fmt.Println(buf)
			return errors.Join(err, comm.WaitAll(ctx, sent))
		}
	})
	fmt.Println(err)
	// Output:
	// [42]
	// <nil>
}

// A rank that receives repeatedly uses memory from Alloc, so that the sender can write into it.
func ExampleAlloc() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		const count = 100_000
		if c.Rank() == 1 {
			out := make([]float32, count)
			out[count-1] = 42
			return comm.Send(ctx, c, 0, 1, out)
		}
		in, free, err := comm.Alloc[float32](c, count)
		if err != nil {
			return err
		}
		defer free() // the garbage collector does not free this memory
		if _, err := comm.Recv(ctx, c, 1, 1, in); err != nil {
			return err
		}
		fmt.Println(in[count-1])
		return nil
	})
	fmt.Println(err)
	// Output:
	// 42
	// <nil>
}

// WaitSome returns all messages that have arrived, so that the program can handle them at once.
func ExampleWaitSome() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() > 0 {
			return comm.Send(ctx, c, 0, 0, []int{10 * c.Rank()})
		}
		bufs := [][]int{make([]int, 1), make([]int, 1)}
		rs := []*comm.Request{comm.IRecv(c, 1, 0, bufs[0]), comm.IRecv(c, 2, 0, bufs[1])}
		sum := 0
		for left := len(rs); left > 0; {
			done, _, err := comm.WaitSome(ctx, rs...)
			if err != nil {
				return err
			}
			for _, i := range done {
				sum += bufs[i][0]
			}
			left -= len(done)
		}
		fmt.Println(sum)
		return nil
	})
	fmt.Println(err)
	// Output:
	// 30
	// <nil>
}

// A rank does its own work until all requests that it has started are done.
func ExampleTestAll() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		sum, largest := []int{c.Rank() + 1}, []int{c.Rank() + 1}
		rs := []*comm.Request{comm.IAllReduce(c, sum, comm.Sum), comm.IAllReduce(c, largest, comm.Max)}
		for done := false; !done; {
			var err error
			if done, err = comm.TestAll(rs...); err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			fmt.Println(sum, largest)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [3] [2]
	// <nil>
}
