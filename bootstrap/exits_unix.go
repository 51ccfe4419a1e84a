//go:build unix

package bootstrap

import (
	"encoding/binary"
	"os"
	"slices"
	"syscall"

	"github.com/tutti-go/tutti/internal/vars"
)

// openExits returns a function that reports whether a rank has ended, or nil if fd is not a record
// with these entries. entries[r] is the index of rank r's entry. If grows is false, the record must
// have no further entries.
func openExits(fd int, entries []int, grows bool) func(rank int) bool {
	need := int64(vars.ExitsSize(slices.Max(entries) + 1))
	size, ok := sizeOf(fd, vars.ExitsMagic)
	if !ok || size < need || size > need && !grows {
		return nil
	}
	syscall.CloseOnExec(fd)
	return func(r int) bool {
		var dead [1]byte
		if r < 0 || r >= len(entries) {
			return false
		}
		n, err := syscall.Pread(fd, dead[:], int64(vars.ExitsSize(entries[r])))
		return err == nil && n == 1 && dead[0] == 1
	}
}

// writeJoined writes this process's id into the file of fd. The rank then counts as ended only if
// this very process was started by the launcher and has ended.
func writeJoined(fd int) {
	if size, ok := sizeOf(fd, vars.JoinedMagic); !ok || size != int64(vars.JoinedSize) {
		return
	}
	syscall.CloseOnExec(fd)
	own := binary.LittleEndian.AppendUint32(nil, uint32(os.Getpid()))
	syscall.Pwrite(fd, own, int64(len(vars.JoinedMagic))) // if it fails, the end of this process is no proof
}

// sizeOf returns the size of a file that begins with magic; ok is false if the file does not.
func sizeOf(fd int, magic string) (size int64, ok bool) {
	var st syscall.Stat_t
	b := make([]byte, len(magic))
	if syscall.Fstat(fd, &st) != nil {
		return 0, false
	}
	_, err := syscall.Pread(fd, b, 0)
	return st.Size, err == nil && string(b) == magic
}
