package agent

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/internal/test/leak"
)

// cutOff makes the kernel drop all that arrives for a connection, as if its host were cut off. The
// peer then gets no acknowledgement any more.
func cutOff(t *testing.T, nc net.Conn) {
	t.Helper()
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	conn, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := conn.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
}

// The heartbeats of a process wait for an acknowledgement when its launcher's host is cut off, so
// that TCP's keep-alive does not see it.
func TestALauncherWhoseHostIsCutOffEndsItsJob(t *testing.T) {
	leak.Check(t)
	wait := alive(t)
	c := Keys{Secret: secretIn(t, ourSecret)}
	a := serve(t, c, func(a *Agent) { a.limits.cut = 300 * time.Millisecond })
	conn, _ := begin(t, a.dialer(t, c), "remote")
	cutOff(t, conn.NetConn())
	io.WriteString(conn, "what the process repeats")
	a.waitFor(t, errCut.Error())
	wait()
}

func TestOnlyUnansweredBytesCutALauncherOff(t *testing.T) {
	const window = 78848 // bytes
	for name, c := range map[string]struct {
		info unix.TCPInfo
		cut  bool
	}{
		"nothing on the way":           {unix.TCPInfo{Snd_wnd: window, Last_ack_recv: 20000}, false},
		"on the way for a moment":      {unix.TCPInfo{Unacked: 2, Snd_wnd: window, Last_ack_recv: 2000}, false},
		"stopped, probed now and then": {unix.TCPInfo{Unacked: 2, Snd_wnd: 0, Last_ack_recv: 20000}, false},
		"cut off":                      {unix.TCPInfo{Unacked: 2, Snd_wnd: window, Last_ack_recv: 20000}, true},
	} {
		if got := isUnanswered(&c.info, cutTimeout); got != c.cut {
			t.Errorf("%s: got %v, want %v", name, got, c.cut)
		}
	}
}
