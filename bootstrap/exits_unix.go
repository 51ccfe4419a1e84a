//go:build unix

package bootstrap

import (
	"encoding/binary"
	"os"
	"slices"
	"syscall"

	"github.com/tutti-go/tutti/internal/vars"
)

// openExits writes this process's ID into the record, in the entry of the given rank. So the rank
// counts as ended only if the launcher has started this very process, and the process has ended.
// entries[r] is the index of rank r's entry. openExits returns a function that reports whether a
// rank has ended, or nil if fd is not a record with these entries. If grows is false, the record
// must have no further entries.
func openExits(fd, rank int, entries []int, grows bool) func(rank int) bool {
	var st syscall.Stat_t
	magic := make([]byte, len(vars.ExitsMagic))
	size := int64(vars.ExitsSize(slices.Max(entries) + 1))
	if syscall.Fstat(fd, &st) != nil || st.Size < size || st.Size > size && !grows {
		return nil
	}
	if _, err := syscall.Pread(fd, magic, 0); err != nil || string(magic) != vars.ExitsMagic {
		return nil
	}
	syscall.CloseOnExec(fd)
	own := binary.LittleEndian.AppendUint32(nil, uint32(os.Getpid()))
	if _, err := syscall.Pwrite(fd, own, int64(vars.ExitsSize(entries[rank]))); err != nil {
		return nil
	}
	return func(r int) bool {
		var b [8]byte
		if r < 0 || r >= len(entries) {
			return false
		}
		n, err := syscall.Pread(fd, b[:], int64(vars.ExitsSize(entries[r])))
		joined, ended := binary.LittleEndian.Uint32(b[:]), binary.LittleEndian.Uint32(b[4:])
		return err == nil && n == len(b) && joined != 0 && joined == ended
	}
}
