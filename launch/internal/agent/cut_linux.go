package agent

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// isCut reports whether the other host has acknowledged nothing for the given time, although bytes
// are on their way to it. The kernel would retransmit them for a quarter of an hour.
// TCP_USER_TIMEOUT is no alternative. It would also end the connection of a launcher that is
// stopped and does not read, although the launcher's kernel acknowledges each probe.
func isCut(nc net.Conn, limit time.Duration) bool {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	conn, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var info *unix.TCPInfo
	read := func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }
	if conn.Control(read) != nil {
		return false
	}
	return err == nil && isUnanswered(info, limit)
}

// isUnanswered decides isCut from the kernel's description of a connection.
func isUnanswered(info *unix.TCPInfo, limit time.Duration) bool {
	// A window of 0 means that the launcher does not read. The kernel then probes ever more rarely,
	// but the launcher is not cut off. Kernels before 5.4 do not report the window.
	return info.Unacked > 0 && info.Snd_wnd > 0 && time.Duration(info.Last_ack_recv)*time.Millisecond > limit
}
