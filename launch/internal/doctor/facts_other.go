//go:build !linux

package doctor

import "net"

// addLimits adds nothing, because the limits that matter are Linux's.
func addLimits(*Facts) {}

// pathMTU returns 0, because this system does not report it.
func pathMTU(net.Conn) int { return 0 }
