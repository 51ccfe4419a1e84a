package comm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// After the loss of a rank, the remaining ranks form a new communicator. All of them get the same
// list. The example is not run, because it needs a rank that dies.
func ExampleComm_Lost() {
	ctx := context.Background()
	c, err := comm.Init(ctx)
	if err != nil {
		panic(err)
	}
	err = c.Barrier(ctx)
	if errors.Is(err, fault.PeerLost) {
		lost := c.Lost()
		fmt.Printf("lost ranks %v: %v\n", lost, err)
		var left []int
		for r := range c.Size() {
			if !slices.Contains(lost, r) {
				left = append(left, r)
			}
		}
		c, err = c.Sub(ctx, left...)
	}
	if err != nil {
		panic(err)
	}
	fmt.Printf("rank %d of %d goes on\n", c.Rank(), c.Size())
}
