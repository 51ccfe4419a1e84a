// Package secretfile reads secrets from files that only their user may read. It does not know what
// a secret is for.
package secretfile

import (
	"bytes"
	"io"
	"os"
	"strconv"

	"github.com/tutti-go/tutti/internal/jobca"
)

// Max is the maximum number of bytes of a secret. The minimum is jobca.MinSecret.
const Max = 4 << 10

// A FileError says why a file is refused. It never contains any of the file's content.
type FileError struct {
	Why    string // continues a sentence that begins with the file's name
	Remedy string
}

// Error implements error.
func (e *FileError) Error() string { return e.Why + ": " + e.Remedy }

// The remedies.
const (
	write   = "write one with: (umask 077; openssl rand -hex 16 > FILE)"
	protect = "chmod 600 it (a Kubernetes secret's volume: defaultMode: 0400, and the pod's fsGroup if it does not run as root)"
)

// Read reads a secret from a file that only this user may read. The bytes of the file, without
// surrounding white space, are the secret. Errors are of type *FileError.
func Read(path string) ([]byte, error) {
	b, err := ReadPrivate(path, Max)
	if err != nil {
		return nil, err
	}
	if b = bytes.TrimSpace(b); len(b) < jobca.MinSecret || len(b) > Max {
		return nil, &FileError{"holds no secret of " + strconv.Itoa(jobca.MinSecret) + " to " + strconv.Itoa(Max) + " bytes", write}
	}
	return b, nil
}

// ReadPrivate reads a file that only this user may read, and returns at most limit+1 bytes. It
// refuses a file that other users can read, and does not only warn, because they may know the
// content already. It refuses devices and FIFOs, because reading them may block for ever. Errors
// are of type *FileError.
func ReadPrivate(path string, limit int64) ([]byte, error) {
	// The check comes before the open, because opening a FIFO waits for its writer.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, &FileError{"is not a regular file", write}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, unreadable(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, unreadable(err)
	}
	if readableByOthers(info) {
		return nil, &FileError{"can be read by others (mode " + info.Mode().Perm().String() + ")", protect}
	}
	b, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, unreadable(err)
	}
	return b, nil
}

// unreadable returns the FileError of a file that the system does not let this process read.
func unreadable(err error) error { return &FileError{"cannot be read (" + err.Error() + ")", write} }
