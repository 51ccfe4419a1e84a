package shm

import (
	"log/slog"

	"github.com/tutti-go/tutti/fault"
)

// Name is the name that selects this transport, in TUTTI_TRANSPORT and in addresses of package
// auto.
const Name = "shm"

// Options are the choices that a program has. The zero value is a good choice.
type Options struct {
	// Job distinguishes the names that this job passes to Share from the names that other jobs of
	// this user pass to Share on this host. All ranks of a job have the same Job. It is needed only
	// if the names are not unique among the jobs.
	Job string
	// Log receives a warning for each rejected connection. If it is nil, no warning is written.
	Log *slog.Logger
}

// failure returns an error of this package. A transport does not know ranks, so Rank is -1.
func failure(k fault.Kind, op string, err error) *fault.Error {
	return &fault.Error{Kind: k, Op: "shm: " + op, Rank: -1, Err: err}
}
