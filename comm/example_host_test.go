package comm_test

import (
	"context"
	"fmt"
	"os"

	"github.com/tutti-go/tutti/comm"
)

// Each rank uses a device of its own among those of its host.
func ExampleComm_LocalRank() {
	err := comm.Local(3, func(_ context.Context, c *comm.Comm) error {
		fmt.Printf("rank %d uses device %d\n", c.Rank(), c.LocalRank())
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 uses device 0
	// rank 1 uses device 1
	// rank 2 uses device 2
	// <nil>
}

// The ranks of a host divide its 24 cores.
func ExampleComm_LocalSize() {
	err := comm.Local(3, func(_ context.Context, c *comm.Comm) error {
		const cores = 24
		if c.LocalRank() == 0 {
			fmt.Printf("%d ranks of this host use %d cores each\n", c.LocalSize(), cores/c.LocalSize())
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 3 ranks of this host use 8 cores each
	// <nil>
}

func ExampleComm_Host() {
	err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			name, err := os.Hostname()
			fmt.Println(c.Host() == name)
			return err
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// Each host reads its share of the files. Here all ranks run on one host.
func ExampleComm_HostRank() {
	err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
		if c.LocalRank() > 0 {
			return nil
		}
		files := []string{"part-0", "part-1", "part-2"}
		for i := c.HostRank(); i < len(files); i += c.Layout().Hosts() {
			fmt.Println("read", files[i])
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// read part-0
	// read part-1
	// read part-2
	// <nil>
}

// One rank of each host downloads the data, and the others wait for it.
func ExampleComm_SplitByHost() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		host, err := c.SplitByHost(ctx)
		if err != nil {
			return err
		}
		defer host.Close(ctx)
		if host.Rank() == 0 {
			fmt.Println("download once for", host.Size(), "ranks")
		}
		return host.Barrier(ctx)
	})
	fmt.Println(err)
	// Output:
	// download once for 3 ranks
	// <nil>
}

// TF_CONFIG gives each process a role. This cluster has only one process.
func ExampleComm_Role() {
	os.Setenv("TF_CONFIG", `{"cluster":{"chief":["127.0.0.1:2222"]},"task":{"type":"chief","index":0}}`)
	defer os.Unsetenv("TF_CONFIG")
	ctx := context.Background()
	c, err := comm.Init(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close(ctx)
	if c.Role() == "chief" {
		fmt.Println("this rank writes the checkpoints")
	}
	// Output:
	// this rank writes the checkpoints
}
