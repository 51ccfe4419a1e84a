//go:build !unix

package bootstrap

import "errors"

// readFD fails, because no launcher passes descriptors on this system.
func readFD(int, int) ([]byte, error) { return nil, errors.ErrUnsupported }

// markRead does nothing.
func markRead(int) {}

// closeFD does nothing.
func closeFD(int) {}
