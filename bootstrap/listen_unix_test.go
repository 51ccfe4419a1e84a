//go:build unix

package bootstrap

import (
	"net"
	"os"
	"syscall"
	"testing"
)

// inheritedFD returns the descriptor of a listener in the state in which a launcher passes it on:
// open, without close-on-exec.
func inheritedFD(t *testing.T) (fd int, addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if fd, err = syscall.Dup(int(file.Fd())); err != nil {
		t.Fatal(err)
	}
	return fd, l.Addr().String()
}

func TestInheritedListenerIsAdoptedOnceAndNotPassedOn(t *testing.T) {
	fd, addr := inheritedFD(t)
	j := newJob("test")
	j.Size, j.Root, j.listenFD = 2, addr, fd
	l, err := j.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if l.Addr().String() != addr {
		t.Errorf("got %s, want %s", l.Addr(), addr)
	}
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFD, 0)
		if flags&syscall.FD_CLOEXEC == 0 {
			t.Error("children would inherit the listener")
		}
	})
	l.Close()
	// After an orderly close the address is free, so that the same job can start again.
	again, err := j.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// A child of rank 0 has the variables of rank 0 but not the inherited descriptor. This test checks
// that Listen does not touch another file with that descriptor number.
func TestDescriptorThatIsNoListenerIsLeftAlone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	j := newJob("test")
	j.Size, j.Root, j.listenFD = 2, free(t), int(r.Fd())
	l, err := j.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Addr().String() != j.Root {
		t.Errorf("got %s, want %s", l.Addr(), j.Root)
	}
	if _, err := w.Write([]byte("x")); err != nil {
		t.Errorf("the descriptor was closed: %v", err)
	}
}
