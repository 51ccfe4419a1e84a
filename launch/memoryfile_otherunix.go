//go:build unix && !linux

package launch

import (
	"errors"
	"os"
)

// memoryFile fails, because this system has no memory files.
func memoryFile(string) (*os.File, error) { return nil, errors.ErrUnsupported }

// readOnly fails, because there are no memory files.
func readOnly(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }
