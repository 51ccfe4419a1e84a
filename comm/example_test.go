package comm_test

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// The Examples use Local, which runs the ranks as goroutines. A real program calls Init instead,
// and each of its processes is one rank. Everything else is the same.

func ExampleInit() {
	ctx := context.Background()
	c, err := comm.Init(ctx, comm.WithTransportName("tcp"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("rank", c.Rank(), "of", c.Size()) // without a launcher the job has one rank
	fmt.Println(c.Close(ctx))
	// Output:
	// rank 0 of 1
	// <nil>
}

func ExampleLocal() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		fmt.Println("rank", c.Rank(), "of", c.Size())
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 of 3
	// rank 1 of 3
	// rank 2 of 3
	// <nil>
}

func ExampleAllReduce() {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		grads := []float64{float64(c.Rank()), 1}
		if err := comm.AllReduce(ctx, c, grads, comm.Mean); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(grads) // equal bits on every rank
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1.5 1]
	// <nil>
}

// MaxLoc finds the largest value in the data of all ranks, and the rank that has it.
func ExampleAllReduce_maxLoc() {
	losses := []float32{0.3, 0.1, 0.7, 0.2} // the loss of each rank
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		worst := []tensor.Loc[float32]{{Value: losses[c.Rank()], Index: int64(c.Rank())}}
		if err := comm.AllReduce(ctx, c, worst, comm.MaxLoc); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Printf("%.1f on rank %d\n", worst[0].Value, worst[0].Index)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 0.7 on rank 2
	// <nil>
}

func ExampleFrom() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		mine, sum := []int{c.Rank(), 10}, make([]int, 2)
		if err := comm.AllReduce(ctx, c, sum, comm.Sum, comm.From(mine)); err != nil {
			return err
		}
		if c.Rank() == 2 {
			fmt.Println(mine, sum)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [2 10] [3 30]
	// <nil>
}

// The rank computes something else while the sum is under way.
func ExampleIAllReduce() {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		grads := []float32{1, 2, 3}
		sum := comm.IAllReduce(c, grads, comm.Sum)
		// Compute here, and leave grads alone.
		if _, err := sum.Wait(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(grads)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [4 8 12]
	// <nil>
}

func ExampleReduce() {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		mine := []int{c.Rank() + 1}
		product := make([]int, 1) // used on the root only
		if err := comm.Reduce(ctx, c, product, comm.Prod, 3, comm.From(mine)); err != nil {
			return err
		}
		if c.Rank() == 3 {
			fmt.Println(product)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [24]
	// <nil>
}

func ExampleBroadcast() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		weights := make([]float32, 2)
		if c.Rank() == 0 {
			weights = []float32{0.5, 0.25}
		}
		if err := comm.Broadcast(ctx, c, weights, 0); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "has", weights)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 has [0.5 0.25]
	// rank 1 has [0.5 0.25]
	// rank 2 has [0.5 0.25]
	// <nil>
}

func ExampleAllGather() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		mine := []int{c.Rank(), c.Rank() * c.Rank()}
		all := make([]int, c.Size()*len(mine))
		if err := comm.AllGather(ctx, c, all, comm.From(mine)); err != nil {
			return err
		}
		if c.Rank() == 1 {
			fmt.Println(all)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [0 0 1 1 2 4]
	// <nil>
}

func ExampleCounts() {
	counts := []int{1, 0, 2} // one count per rank
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		mine := make([]int, counts[c.Rank()])
		for i := range mine {
			mine[i] = 10*c.Rank() + i
		}
		all := make([]int, 3)
		if err := comm.AllGather(ctx, c, all, comm.From(mine), comm.Counts(counts)); err != nil {
			return err
		}
		if c.Rank() == 1 {
			fmt.Println(all)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [0 20 21]
	// <nil>
}

func ExampleGather() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		mine := []string{"red", "green", "blue"}[c.Rank()][:3]
		all := make([]byte, 9) // used on the root only
		if err := comm.Gather(ctx, c, all, 0, comm.From([]byte(mine))); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Printf("%s\n", all)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// redgreblu
	// <nil>
}

func ExampleGather_counts() {
	words := []string{"al", "leg", "ro"}
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		var all []byte
		var counts []int
		if c.Rank() == 0 { // the parts and their counts are used on the root only
			all, counts = make([]byte, 7), []int{2, 3, 2}
		}
		if err := comm.Gather(ctx, c, all, 0, comm.From([]byte(words[c.Rank()])), comm.Counts(counts)); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Printf("%s\n", all)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// allegro
	// <nil>
}

func ExampleScatter() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		var rows []int
		if c.Rank() == 0 {
			rows = []int{1, 2, 3, 4, 5, 6}
		}
		mine := make([]int, 2)
		if err := comm.Scatter(ctx, c, mine, 0, comm.From(rows)); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "has", mine)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 has [1 2]
	// rank 1 has [3 4]
	// rank 2 has [5 6]
	// <nil>
}

func ExampleScatter_counts() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		var rows, counts []int
		if c.Rank() == 0 {
			rows, counts = []int{1, 2, 3, 4}, []int{0, 1, 3}
		}
		mine := make([]int, []int{0, 1, 3}[c.Rank()])
		if err := comm.Scatter(ctx, c, mine, 0, comm.From(rows), comm.Counts(counts)); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "has", mine)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 has []
	// rank 1 has [1]
	// rank 2 has [2 3 4]
	// <nil>
}

func ExampleReduceScatter() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		src := []int{1, 2, 3, 4, 5}
		// The lengths of the parts differ by at most one. The longer parts come first.
		mine := make([]int, 3-c.Rank())
		if err := comm.ReduceScatter(ctx, c, mine, comm.Sum, comm.From(src)); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "has", mine)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 has [2 4 6]
	// rank 1 has [8 10]
	// <nil>
}

func ExampleReduceScatter_counts() {
	counts := []int{1, 4}
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		src := []int{1, 2, 3, 4, 5}
		mine := make([]int, counts[c.Rank()])
		if err := comm.ReduceScatter(ctx, c, mine, comm.Sum, comm.From(src), comm.Counts(counts)); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "has", mine)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 has [2]
	// rank 1 has [4 6 8 10]
	// <nil>
}

// The ranks transpose a matrix: each rank holds a column before the call, and a row afterwards.
func ExampleAllToAll() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		r := c.Rank()
		column := []int{r, 10 + r, 20 + r}
		row := make([]int, 3)
		if err := comm.AllToAll(ctx, c, row, comm.From(column)); err != nil {
			return err
		}
		fmt.Println("rank", r, "had", column, "and has", row)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 had [0 10 20] and has [0 1 2]
	// rank 1 had [1 11 21] and has [10 11 12]
	// rank 2 had [2 12 22] and has [20 21 22]
	// <nil>
}

// Every rank sends i elements to rank i, so rank i receives i elements from every rank.
func ExampleSendCounts() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		r := c.Rank()
		src, sends := []int{100 + r, 200 + r, 201 + r}, []int{0, 1, 2}
		dst, recvs := make([]int, 3*r), []int{r, r, r}
		if err := comm.AllToAll(ctx, c, dst, comm.From(src), comm.Counts(recvs), comm.SendCounts(sends)); err != nil {
			return err
		}
		fmt.Println("rank", r, "has", dst)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 has []
	// rank 1 has [100 101 102]
	// rank 2 has [200 201 201 202 202 203]
	// <nil>
}

func ExampleScan() {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		sum := []int{c.Rank() + 1, 1}
		if err := comm.Scan(ctx, c, sum, comm.Sum); err != nil {
			return err
		}
		fmt.Println("ranks 0 to", c.Rank(), "have", sum)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// ranks 0 to 0 have [1 1]
	// ranks 0 to 1 have [3 2]
	// ranks 0 to 2 have [6 3]
	// ranks 0 to 3 have [10 4]
	// <nil>
}

func ExampleScan_outOfPlace() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		score := []int{[]int{7, 9, 4}[c.Rank()]}
		best := make([]int, 1) // the largest value so far
		if err := comm.Scan(ctx, c, best, comm.Max, comm.From(score)); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "has", score, "and the best so far is", best)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 has [7] and the best so far is [7]
	// rank 1 has [9] and the best so far is [9]
	// rank 2 has [4] and the best so far is [9]
	// <nil>
}

// Two scans are under way at the same time.
func ExampleIScan() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		upTo, before := []int{1}, []int{c.Rank()}
		a, b := comm.IScan(c, upTo, comm.Sum), comm.IExScan(c, before, comm.Sum, comm.From([]int{1}))
		if _, err := b.Wait(ctx); err != nil {
			return err
		}
		if _, err := a.Wait(ctx); err != nil {
			return err
		}
		fmt.Println("up to rank", c.Rank(), "there are", upTo[0], "and before it", before[0])
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// up to rank 0 there are 1 and before it 0
	// up to rank 1 there are 2 and before it 1
	// up to rank 2 there are 3 and before it 2
	// <nil>
}

// Rank 0 has no rank before it, so its buffer stays unchanged.
func ExampleExScan() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		before := []int{10 * (c.Rank() + 1)}
		if err := comm.ExScan(ctx, c, before, comm.Sum); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "has", before)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 has [10]
	// rank 1 has [10]
	// rank 2 has [30]
	// <nil>
}

// Each rank computes the offset at which it writes its records to a common file. Rank 0's offset
// stays unchanged at 0.
func ExampleExScan_outOfPlace() {
	records := [][]int{{30}, {10}, {20}} // the records of each rank
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		at := make([]int, 1)
		if err := comm.ExScan(ctx, c, at, comm.Sum, comm.From(records[c.Rank()])); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "writes", records[c.Rank()][0], "records from", at[0], "on")
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 writes 30 records from 0 on
	// rank 1 writes 10 records from 30 on
	// rank 2 writes 20 records from 40 on
	// <nil>
}

func ExampleComm_Barrier() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			fmt.Println("rank 1 prepares what rank 0 needs")
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println("rank 0 uses it")
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// rank 1 prepares what rank 0 needs
	// rank 0 uses it
	// <nil>
}

// A rank announces that it has reached the barrier, and goes on working until all ranks have
// reached it.
func ExampleComm_IBarrier() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		all := c.IBarrier()
		worked := 0
		for done := false; !done; {
			var err error
			if _, done, err = all.Test(); err != nil {
				return err
			}
			worked++
		}
		if c.Rank() == 0 {
			fmt.Println("all are there, and rank 0 has worked meanwhile:", worked > 0)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// all are there, and rank 0 has worked meanwhile: true
	// <nil>
}
