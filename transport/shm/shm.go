package shm

import (
	"log/slog"

	"github.com/tutti-go/tutti/fault"
)

// Name is the word that selects this transport.
const Name = "shm"

// Options are the choices that a program has. The zero Options are good ones.
type Options struct {
	// Job sets the names given to Share apart from those of other jobs of this user
	// on this host. All ranks of a job have the same one. It is needed only where
	// the names are not unique by themselves.
	Job string
	// Log hears of strangers that were turned away; nil: nobody does.
	Log *slog.Logger
}

// failure is this package's error. A transport does not know ranks: Rank is -1.
func failure(k fault.Kind, op string, err error) *fault.Error {
	return &fault.Error{Kind: k, Op: "shm: " + op, Rank: -1, Err: err}
}
