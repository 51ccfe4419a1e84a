package comm_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// tuttirun --restart-ranks starts a lost rank again. A rank that learns of the loss calls Rejoin.
// The ranks of Local cannot be started again.
func ExampleComm_Rejoin() {
	err := comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		next, err := c.Rejoin(ctx)
		if errors.Is(err, fault.Misuse) {
			fmt.Println("ranks cannot rejoin; go on with the ones that are left")
			next, err = c.Shrink(ctx)
		}
		if err != nil {
			return err
		}
		fmt.Println("ranks:", next.Size())
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// ranks cannot rejoin; go on with the ones that are left
	// ranks: 1
}

// Changed tells a rank between two steps that a process waits to join.
func ExampleComm_Changed() {
	err := comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		select {
		case <-c.Changed():
			_, err := c.Rejoin(ctx)
			return err
		default:
			fmt.Println("the next step, with the same ranks")
			return nil
		}
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: the next step, with the same ranks
}
