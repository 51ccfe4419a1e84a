//go:build unix

package e2e

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/comm"
)

// mark is the repeated content of the vectors of the program "marked".
const mark = "PAYLOAD!"

// sumMarked makes allreduces whose inputs, messages and results all contain mark repeatedly. The
// event "ended" has the job's secret in hex.
func sumMarked(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	var word uint64
	for i := range len(mark) {
		word |= uint64(mark[i]) << (8 * i)
	}
	v := make([]uint64, a.Bytes/8)
	for range 4 {
		for i := range v {
			v[i] = word
		}
		if err := comm.AllReduce(ctx, c, v, comm.Max); err != nil {
			return a.report("ended", callHere(), err)
		}
		for i, x := range v {
			if x != word {
				return fmt.Errorf("element %d: got %x, want %x", i, x, word)
			}
		}
	}
	job, err := bootstrap.Find(bootstrap.Options{})
	if err != nil {
		return err
	}
	a.log("ended", hex.EncodeToString(job.Secret))
	return nil
}
