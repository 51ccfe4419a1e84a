//go:build unix

package launch

import (
	"io"
	"os"

	"github.com/tutti-go/tutti/internal/jobca"
)

// bundle encodes what a rank needs to authenticate itself in an incarnation: the secret, and a new
// key and certificate. The caller gives the bundle to this rank alone. The CA's private key stays
// in this process.
func (r *run) bundle(secret []byte, rank int, incarnation uint32) ([]byte, error) {
	c, err := r.ca.Issue(rank, incarnation)
	if err != nil {
		return nil, err
	}
	return (&jobca.Bundle{Secret: secret, Credentials: c}).Marshal()
}

// privateFile returns a file that holds text. Only processes that inherit the file can read it. A
// script may start several programs for one rank, one after another, and each of them must read the
// text. So the file is a memory file, which each program can read from its start. On a system
// without memory files it is a pipe, which can be read only once.
func privateFile(text []byte) (*os.File, error) {
	f, err := memoryFile("credentials")
	if err != nil {
		return filledPipe(text)
	}
	if _, err = f.Write(text); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// filledPipe returns the read end of a pipe that holds text. The text is shorter than the buffer of
// a pipe on any system, so writing it does not block.
func filledPipe(text []byte) (*os.File, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer to.Close()
	if _, err := to.Write(text); err != nil {
		from.Close()
		return nil, err
	}
	return from, nil
}
