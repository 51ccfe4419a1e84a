package bootstrap

import (
	"github.com/tutti-go/tutti/internal/vars"
)

// exits opens the launcher's record of processes that have ended. It returns a function that
// reports whether a rank has ended, or nil if there is no record. entries[r] is the index of the
// entry of rank r's process. If grows is true, the record may have further entries. The variable
// may have reached a child of a rank, in which the number is another file's. So exits does not
// touch a descriptor that is not such a record.
func (f *finder) exits(rank int, entries []int, grows bool) func(rank int) bool {
	fd, set, err := f.number(rank, vars.ExitsFD, 3, 1<<20)
	if err != nil || !set || !f.own {
		return nil
	}
	return openExits(fd, rank, entries, grows)
}

// upTo returns the numbers from 0 to n-1.
func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
