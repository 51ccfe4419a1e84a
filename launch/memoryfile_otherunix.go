//go:build unix && !linux

package launch

import (
	"errors"
	"os"
)

// memoryFile fails, because this system has no files without a name.
func memoryFile(string) (*os.File, error) { return nil, errors.ErrUnsupported }
