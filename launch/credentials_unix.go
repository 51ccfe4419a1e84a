//go:build unix

package launch

import (
	"io"
	"os"

	"github.com/tutti-go/tutti/internal/jobca"
)

// credentials returns a file that holds the job's secret and a rank's own key and certificate. Only
// that rank inherits it. The CA's private key stays in this process.
func (r *run) credentials(k *rank) (*os.File, error) {
	c, err := r.ca.Issue(k.id, 0)
	if err != nil {
		return nil, err
	}
	text, err := (&jobca.Bundle{Secret: r.secret, Credentials: c}).Marshal()
	if err != nil {
		return nil, err
	}
	return privateFile(text)
}

// privateFile returns a file that only processes which inherit it can read. Each of them can read a
// memory file from its start: a script may start several programs of one rank, one after another.
// Where there are no memory files it is a pipe, which one process can read, once.
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

// filledPipe returns the end of a pipe from which text can be read. The text is smaller than the
// buffer of a pipe on any system, so writing it does not wait for a reader.
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
