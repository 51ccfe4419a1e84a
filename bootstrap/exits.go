package bootstrap

import (
	"github.com/tutti-go/tutti/internal/vars"
)

// exits reads the launcher's record of ranks that have ended. It returns a function that reports
// whether a rank has ended, or nil if there is no record. If the descriptor is not such a record,
// exits does not touch it: the variable may have reached a child of a rank, where the number means
// another file.
func (f *finder) exits(j *Job) func(rank int) bool {
	fd, set, err := f.number(j.Rank, vars.ExitsFD, 3, 1<<20)
	if err != nil || !set || !f.own {
		return nil
	}
	return openExits(fd, j.Rank, j.Size)
}
