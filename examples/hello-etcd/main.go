// Command hello-etcd is the example hello for a job whose ranks meet in etcd. Each rank is started
// by hand, or by any scheduler:
//
//	export TUTTI_STORE=etcd://n1:2379/tutti TUTTI_SIZE=2 TUTTI_SECRET_FILE=~/tutti.secret
//	TUTTI_RANK=0 bin/hello-etcd    # on one host
//	TUTTI_RANK=1 bin/hello-etcd    # on another
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/tutti-go/tutti/bootstrap/etcd"
	"github.com/tutti-go/tutti/comm"
)

func main() {
	if err := hello(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "hello-etcd:", err)
		os.Exit(1)
	}
}

func hello(ctx context.Context) error {
	c, err := comm.Init(ctx, comm.WithStore(etcd.New(etcd.Config{})))
	if err != nil {
		return err
	}
	grads := []float64{float64(c.Rank()), 1}
	if err := comm.AllReduce(ctx, c, grads, comm.Mean); err != nil {
		return err
	}
	fmt.Println("rank", c.Rank(), "of", c.Size(), "has", grads)
	return c.Close(ctx)
}
