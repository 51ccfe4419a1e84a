package main

import (
	"context"
	"errors"
	"os"
	"runtime/pprof"

	"github.com/tutti-go/tutti/comm"
)

// profiled runs f, and has rank 0 write a CPU profile of its process meanwhile to a
// file; "" writes none. Whether that can be is found out before f runs anywhere.
func profiled(ctx context.Context, c *comm.Comm, file string, f func() error) error {
	if file == "" {
		return f()
	}
	if err := onRankZero(ctx, c, "cpuprofile", file, checkWritable); err != nil {
		return err
	}
	if c.Rank() > 0 {
		return f()
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err = pprof.StartCPUProfile(out); err == nil {
		err = f()
		pprof.StopCPUProfile()
	}
	return errors.Join(err, out.Close())
}
