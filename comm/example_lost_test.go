package comm_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// After the loss of a rank, the remaining ranks go on in a new communicator. The example is not
// run, because it needs a rank that dies.
func ExampleComm_Lost() {
	ctx := context.Background()
	c, err := comm.Init(ctx)
	if err != nil {
		panic(err)
	}
	err = c.Barrier(ctx)
	if errors.Is(err, fault.PeerLost) || errors.Is(err, fault.LinkLost) || errors.Is(err, fault.Revoked) {
		fmt.Printf("lost ranks %v: %v\n", c.Lost(), err)
		c.Revoke() // other ranks may wait in calls that do not need the lost rank
		c, err = c.Shrink(ctx)
	}
	if err != nil {
		panic(err)
	}
	fmt.Printf("rank %d of %d goes on\n", c.Rank(), c.Size())
}
