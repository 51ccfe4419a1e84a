package shm

import (
	"context"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
)

// forbid makes a system call fail with EPERM from now on, in all threads of this process, as
// a sandbox does.
func forbid(call uint32) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// forbidden holds the system calls that a test may forbid to a peer.
var forbidden = map[string]uint32{"memfd_create": unix.SYS_MEMFD_CREATE, "sendmsg": unix.SYS_SENDMSG, "recvmsg": unix.SYS_RECVMSG}

// runForbidden runs as a peer in a sandbox that forbids a system call. Alloc, Dial, Share and Serve
// must return fault.Refused. It prints the reason why it cannot share memory, or the first wrong
// result.
func runForbidden(call string) {
	if err := forbid(forbidden[call]); err != nil {
		fmt.Println("no sandbox:", err)
		return
	}
	t := New(Options{})
	_, _, allocErr := t.Alloc(1)
	_, dialErr := t.Dial(context.Background(), address{t.locality, "name"}.String())
	_, _, shareErr := t.Share(context.Background(), "name", 1, 1)
	_, serveErr := t.Serve(nil, func(transport.Conn) {})
	for _, err := range []error{allocErr, dialErr, shareErr, serveErr} {
		if !errors.Is(err, fault.Refused) {
			fmt.Printf("got %v, want %v\n", err, fault.Refused)
			return
		}
	}
	fmt.Println(t.Available())
}

// A process that cannot make memory, or cannot pass its descriptor, must detect this at the start
// and report the reason. Then package auto uses another wire.
func TestSandboxedProcessReportsWhySharingIsUnavailable(t *testing.T) {
	for call := range forbidden {
		output := startPeer(t, "forbidden "+call).addr
		if strings.HasPrefix(output, "no sandbox: ") {
			// Reason: a kernel without seccomp has no such sandboxes.
			t.Skip(output)
		}
		if !strings.Contains(output, call+": operation not permitted") {
			t.Errorf("without %s: got %q", call, output)
		}
	}
}

// If the host of a Share cannot send descriptors, the Shares of the other ranks must fail.
func TestShareFailsForAllWhenItsHostCannotSendDescriptors(t *testing.T) {
	leak.Check(t)
	tr := New(Options{})
	defer tr.Close()
	name := t.Name() + randomName()
	host := startPeer(t, "share "+name+" 2 100 sendmsg")
	if strings.HasPrefix(host.addr, "no sandbox: ") {
		// Reason: a kernel without seccomp has no such sandboxes.
		t.Skip(host.addr)
	}
	// Reason: the loop waits until the other process is the host, which reports nothing yet.
	for deadline := time.Now().Add(testTimeout); !hasHost(tr, name); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody hosts the share")
		}
	}
	if _, _, err := tr.Share(testContext(t), name, 2, 100); !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "could not make it or send its descriptor") {
		t.Errorf("got %v, want %v", err, fault.Exhausted)
	}
}

// A hello whose descriptor was removed must be rejected. Other handshakes must not be affected.
func TestHandshakeWithoutDescriptorConcernsNoOther(t *testing.T) {
	leak.Check(t)
	_, name, conns := serveForTest(t, Options{})
	nc := dialRaw(t, name)
	nc.Write(rawHello(version, minRing))
	b := make([]byte, answerLen)
	if fd, err := readWithRights(nc, b); err != nil || fd >= 0 || b[8] != answerRejected || !strings.Contains(string(b[reasonOffset:]), "removes descriptors") {
		t.Errorf("got answer %q, descriptor %d, %v", b[reasonOffset:], fd, err)
	}
	here, _ := detectLocality()
	near := New(Options{})
	defer near.Close()
	if _, err := near.Dial(testContext(t), address{here, name}.String()); err != nil {
		t.Fatal(err)
	}
	receive(t, conns)
}

// If descriptors pass in only one direction, there must be no Conn.
func TestAnswerWithoutDescriptorIsRefused(t *testing.T) {
	leak.Check(t)
	here, _ := detectLocality()
	name := "tutti-test-" + randomName()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		nc, err := l.AcceptUnix()
		if err != nil {
			served <- err
			return
		}
		defer nc.Close()
		seg, fd, err := readHello(nc)
		if err != nil {
			served <- err
			return
		}
		defer seg.close()
		defer unix.Close(fd)
		n := newNonce()
		copy(seg.mem[acceptorNonceOffset:], n[:])
		b := make([]byte, answerLen)
		copy(b, magic)
		copy(b[16:], seg.mem[dialerNonceOffset:][:16])
		copy(b[32:], n[:])
		_, err = nc.Write(b)
		served <- err
	}()
	tr := New(Options{})
	defer tr.Close()
	if _, err := tr.Dial(testContext(t), address{here, name}.String()); !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "removes descriptors") {
		t.Errorf("got %v, want %v", err, fault.Refused)
	}
	if err := receive(t, served); err != nil {
		t.Error(err)
	}
}

// fakeHost binds a Share's name, reads one request, and replies.
func fakeHost(t *testing.T, tr *Transport, name string, reply func(nc *net.UnixConn)) (ended <-chan error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + tr.shareName(name)})
	if err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() {
		nc, err := l.AcceptUnix()
		if err == nil {
			_, err = readRequest(nc)
			l.Close() // the name is free again
			reply(nc)
			nc.Close()
		}
		end <- err
	}()
	return end
}

// A member whose descriptor is removed on the way must fail, and must not wait for the commit.
func TestShareWithoutDescriptorFails(t *testing.T) {
	leak.Check(t)
	for name, tc := range map[string]struct {
		code byte
		want fault.Kind
	}{"no descriptor": {replyMemory, fault.Refused}, "no memory": {replyFailed, fault.Exhausted}, "a commit of nothing": {replyCommit, fault.Exhausted}} {
		tr := New(Options{Job: randomName()})
		ended := fakeHost(t, tr, name, func(nc *net.UnixConn) { nc.Write(makeReply(tc.code, shareRequest{})) })
		if _, _, err := tr.Share(testContext(t), name, 2, 100); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
		if err := receive(t, ended); err != nil {
			t.Error(err)
		}
		tr.Close()
	}
}

// A host may die after it has sent the memory to some members. Then these members must not use the
// memory, and all ranks must try again.
func TestShareBeginsAgainWhenItsHostDiesBeforeTheCommit(t *testing.T) {
	leak.Check(t)
	tr := New(Options{Job: randomName()})
	defer tr.Close()
	other := New(tr.options)
	defer other.Close()
	ended := fakeHost(t, tr, "name", func(nc *net.UnixConn) {
		fd, err := createMemfd(100, fixedSeals)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		if err := sendDescriptor(nc, makeReply(replyMemory, shareRequest{}), fd); err != nil {
			t.Error(err)
		}
	})
	got := make(chan error, 2)
	share := func(tr *Transport) {
		mem, release, err := tr.Share(testContext(t), "name", 2, 100)
		if err == nil {
			mem[0]++ // the memory is there
			err = release()
		}
		got <- err
	}
	go share(tr)
	if err := receive(t, ended); err != nil {
		t.Fatal(err)
	}
	share(other)
	for range 2 {
		if err := receive(t, got); err != nil {
			t.Error(err)
		}
	}
}

// The reason in an answer is cut, so the remedy must come first.
func TestReasonForAPeerBeginsWithTheRemedy(t *testing.T) {
	for _, tc := range []struct {
		err  error
		kind fault.Kind
		want string
	}{
		{unix.EMFILE, fault.Exhausted, "raise ulimit -n: too many open files"},
		{unix.ENFILE, fault.Exhausted, "raise fs.file-max: too many open files in system"},
		{nil, fault.Refused, "none came with the message"},
		{unix.EACCES, fault.Refused, "none came with the message"},
	} {
		var got *fault.Error
		if !errors.As(noDescriptorFor(tc.err), &got) || got.Kind != tc.kind || !strings.HasPrefix(got.Err.Error(), tc.want) || len(tc.want) > reasonRoom {
			t.Errorf("no descriptor, and / opens with %v: got %v, want %v: %s", tc.err, got, tc.kind, tc.want)
		}
	}
	if full := startPeer(t, "full").addr; !strings.Contains(full, "raise ulimit -n: too many open files") {
		t.Errorf("a process without room for descriptors says %q", full)
	}
}

// A peer may be killed at any moment of a handshake. Then Dial must fail, and nothing may leak.
func TestPeerKilledDuringHandshakes(t *testing.T) {
	leak.Check(t)
	for range 8 {
		p := startPeer(t, "nothing")
		near := New(Options{})
		// The moment is arbitrary.
		killer := time.AfterFunc(mrand.N(3*time.Millisecond), func() { p.Process.Kill() })
		for err := error(nil); err == nil; {
			var c transport.Conn
			if c, err = near.Dial(testContext(t), p.addr); err == nil {
				c.Close()
			}
		}
		killer.Stop()
		near.Close()
	}
}
