package main

import (
	"context"
	"errors"
	"os"
	"runtime/pprof"

	"github.com/tutti-go/tutti/comm"
)

// profiled calls f while rank 0 writes a CPU profile of its process to a file. If the name is "",
// it writes no profile. If the file cannot be written, profiled fails on all ranks before any of
// them calls f.
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
