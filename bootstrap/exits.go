package bootstrap

import (
	"github.com/tutti-go/tutti/internal/vars"
)

// exits tells the launcher that this process has joined, and reads the launcher's record of
// processes that have ended. It returns a function that reports whether a rank has ended, or nil if
// there is no record. entries[r] is the index of the entry of rank r's process. If grows is true,
// the record may have further entries. If a descriptor is not such a file, exits does not touch it:
// the variable may have reached a child of a rank, where the number means another file.
func (f *finder) exits(rank int, entries []int, grows bool) func(rank int) bool {
	fd, set, err := f.number(rank, vars.ExitsFD, 3, 1<<20)
	if err != nil || !set || !f.own {
		return nil
	}
	ended := openExits(fd, entries, grows)
	if fd, set, err := f.number(rank, vars.JoinedFD, 3, 1<<20); err == nil && set && ended != nil {
		writeJoined(fd)
	}
	return ended
}

// upTo returns the numbers from 0 to n-1.
func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
