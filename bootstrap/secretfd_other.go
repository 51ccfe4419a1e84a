//go:build !unix

package bootstrap

import "errors"

// readFD fails: no launcher passes descriptors on this system.
func readFD(int, int) ([]byte, error) { return nil, errors.ErrUnsupported }

// closeFD does nothing.
func closeFD(int) {}
