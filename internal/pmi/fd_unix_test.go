//go:build unix

package pmi

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// lookupOf returns a function that looks up variables in a map.
func lookupOf(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// socketPair returns the descriptors of two connected sockets. The test closes the second one.
func socketPair(t *testing.T) (fd, other int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fds[1]) })
	return fds[0], fds[1]
}

func TestDialByAnInheritedSocket(t *testing.T) {
	fd, other := socketPair(t)
	file := os.NewFile(uintptr(other), "process manager")
	far, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	served := make(chan error, 1)
	go func() { served <- answer(far, hydra402) }()
	lookup := lookupOf(map[string]string{"PMI_FD": strconv.Itoa(fd), "PMI_RANK": "0", "PMI_SIZE": "4"})
	if !Inherited(lookup) {
		t.Fatal("Inherited: got false for a socket, want true")
	}
	c, err := Dial(t.Context(), lookup)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFD, 0); errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
			t.Errorf("flags: got %#x, %v, want close-on-exec", flags, errno)
		}
	})
	if Inherited(lookup) {
		t.Error("the descriptor is open after Dial, want only the connection's own")
	}
	if v, err := c.Exchange(t.Context(), "1,ab,,4000,n1"); v != "1,ab,,4000,n1" || err != nil {
		t.Errorf("got %q, %v", v, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A variable may be left over from an outer job. Its number is then no descriptor, or another
// file's, which the process has inherited or opened.
func TestAStaleDescriptorDoesNotCount(t *testing.T) {
	closed, _ := socketPair(t)
	syscall.Close(closed)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	connection, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	for name, fd := range map[string]string{
		"closed": strconv.Itoa(closed), "file": inheritable(t, file), "pipe": inheritable(t, r), "listener": inheritable(t, listener.(syscall.Conn)),
		"a connection of this process": strconv.Itoa(descriptor(t, connection.(syscall.Conn))),
		"standard error":               "2", "no number": "x", "empty": "", "negative": "-1",
	} {
		if Inherited(lookupOf(map[string]string{"PMI_FD": fd, "PMI_RANK": "0", "PMI_SIZE": "2"})) {
			t.Errorf("%s: got true, want false", name)
		}
	}
	if fd := inheritable(t, connection.(syscall.Conn)); !Inherited(lookupOf(map[string]string{"PMI_FD": fd})) {
		t.Error("an inherited connection: got false, want true")
	}
}

// descriptor returns the descriptor of a file or a socket.
func descriptor(t *testing.T, c syscall.Conn) (fd int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(n uintptr) { fd = int(n) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// inheritable returns the number of a copy of a descriptor, without close-on-exec, as a process has
// it from its parent.
func inheritable(t *testing.T, c syscall.Conn) string {
	t.Helper()
	fd, err := syscall.Dup(descriptor(t, c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	return strconv.Itoa(fd)
}

func TestDialRefusesBadVariables(t *testing.T) {
	fd, _ := socketPair(t)
	for _, vars := range []map[string]string{
		{"PMI_FD": strconv.Itoa(fd), "PMI_SIZE": "2"},
		{"PMI_FD": strconv.Itoa(fd), "PMI_RANK": "0", "PMI_SIZE": "0"},
		{"PMI_PORT": "127.0.0.1:1", "PMI_ID": "one"},
		{"PMI_PORT": "nowhere", "PMI_ID": "1"},
	} {
		if c, err := Dial(t.Context(), lookupOf(vars)); err == nil {
			t.Errorf("%v: got %v, want an error", vars, c)
		}
	}
	syscall.Close(fd)
}
