// Command allreduce sums a vector over the ranks of a job, over Unix-domain sockets in a folder.
//
//	tuttirun -np 2 allreduce DIR
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"example.com/unixsock"
	"github.com/tutti-go/tutti/comm"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: allreduce DIR")
	}
	ctx := context.Background()
	c, err := comm.Init(ctx, comm.WithTransport(unixsock.New(os.Args[1])))
	if err != nil {
		log.Fatal(err)
	}
	v := make([]float64, 1<<20)
	for i := range v {
		v[i] = float64(c.Rank() + i)
	}
	if err := comm.AllReduce(ctx, c, v, comm.Sum); err != nil {
		log.Fatal(err)
	}
	n := c.Size()
	for i, got := range v {
		if want := float64(n*i + n*(n-1)/2); got != want {
			log.Fatalf("element %d: got %v, want %v", i, got, want)
		}
	}
	fmt.Printf("rank %d of %d: %d sums are right\n", c.Rank(), n, len(v))
	if err := c.Close(ctx); err != nil {
		log.Fatal(err)
	}
}
