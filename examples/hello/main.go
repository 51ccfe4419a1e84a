// Command hello is the smallest job: every rank contributes a number, and all get the
// mean. A launcher starts several ranks; without one, the program is a single rank.
//
//	bin/tuttirun -np 4 bin/hello
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/tutti-go/tutti/comm"
)

func main() {
	if err := hello(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

func hello(ctx context.Context) error {
	c, err := comm.Init(ctx) // who am I, and where are the others?
	if err != nil {
		return err
	}
	grads := []float64{float64(c.Rank()), 1}
	if err := comm.AllReduce(ctx, c, grads, comm.Mean); err != nil {
		return err // names the rank at fault
	}
	fmt.Println("rank", c.Rank(), "of", c.Size(), "has", grads)
	return c.Close(ctx)
}
