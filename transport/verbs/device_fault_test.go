//go:build verbs && linux && cgo

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/tcp"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// needsDevice skips a test that needs a real device, which `make test-verbs` provides.
func needsDevice(t testing.TB) {
	t.Helper()
	if _, err := openDeviceForTest(); err != nil {
		// Reason: this test needs a real device, which `make test-verbs` provides. The tests of the
		// software devices need none.
		t.Skipf("there is no usable RDMA device: %v", err)
	}
}

func TestDeviceRefusesAWrongKey(t *testing.T) {
	needsDevice(t)
	b := newConnPair(t, nil, Options{})
	mem, to, release := b.expose(50_000)
	defer release()
	b.ends[0].mu.Lock()
	b.ends[0].flow.remotes[0].rkey ^= 0x5a00
	b.ends[0].mu.Unlock()
	done := b.send(&transport.Frame{To: to, ID: 1, Body: make([]byte, len(mem))})
	b.waitFailure()
	if err := <-done; !errors.Is(err, fault.LinkLost) || !strings.Contains(err.Error(), "remote access error") {
		t.Errorf("Done got %v", err)
	}
}

// openHard opens a device. When the test ends, the device must hold no queue pairs and no
// registered memory.
func openHard(t *testing.T) *ibDevice {
	t.Helper()
	needsDevice(t)
	leak.Check(t)
	d, err := openDevice(&config{gid: -1, timeout: 14, retries: 6, rnr: 6})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d.(*ibDevice)
}

// The interface goes down and comes back while nothing is posted. The device must report both by
// events, which must end no queue pair. The test changes the interface only if VERBS_NETDEV names
// it, as in the VMs of tools/verbs-vm.
func TestDeviceReportsThatItsPortIsDown(t *testing.T) {
	h := openHard(t)
	p, err := h.NewQueuePair(minDepth, func() {})
	if err != nil {
		t.Fatal(err)
	}
	netdev, states := os.Getenv("VERBS_NETDEV"), []string{"down", "up"}
	if netdev == "" {
		t.Log("no port is taken down: VERBS_NETDEV names no interface")
		states = nil
	} else {
		// The interface comes up again even if the test fails.
		t.Cleanup(func() { exec.Command("ip", "link", "set", netdev, "up").Run() })
	}
	for _, state := range states {
		if out, err := exec.Command("ip", "link", "set", netdev, state).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for deadline := time.Now().Add(testTimeout); strings.Contains(h.Describe(), "port is down") != (state == "down"); runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("the interface is %s, and the device is %s", state, h.Describe())
			}
		}
	}
	if n, err := p.Poll(make([]rdma.Completion, 1), 1); n != 0 || err != nil {
		t.Errorf("the queue pair has %d completions, and the error %v", n, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// An event of a queue pair must end only that queue pair. An event of the device must end all its
// queue pairs. Each of these events must fire Arm.
func TestDeviceEventsEndThePairsThatTheyAreAbout(t *testing.T) {
	h := openHard(t)
	var pairs [2]*ibQueuePair
	var rung [2]int
	for i := range pairs {
		p, err := h.NewQueuePair(minDepth, func() { rung[i]++ })
		if err != nil {
			t.Fatal(err)
		}
		pairs[i] = p.(*ibQueuePair)
	}
	ended := func(want ...bool) {
		t.Helper()
		for i, p := range pairs {
			if n, err := p.Poll(make([]rdma.Completion, 1), 1); n != 0 || (err != nil) != want[i] || (rung[i] > 0) != want[i] {
				t.Errorf("pair %d was rung %d times, and has %d completions and the error %v", i, rung[i], n, err)
			}
		}
	}
	h.handleEvent(portError, 0, h.selection.port.number)
	h.handleEvent(11, 0, h.selection.port.number) // the LID has changed
	ended(false, false)
	h.handleEvent(queueOverran, pairs[1].number, 0)
	ended(false, true)
	h.handleEvent(deviceFatal, 0, 0)
	ended(true, true)
	for _, p := range pairs {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A killingDevice kills its process at one chosen step. Steps are the moments before and after each
// call of the device, and the moments at which a completion has been polled but not handled.
type killingDevice struct {
	rdma.Device
	left *atomic.Int64
}

func (d killingDevice) step() {
	if d.left.Add(-1) == 0 {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (d killingDevice) NewQueuePair(depth int, notify func()) (rdma.QueuePair, error) {
	d.step()
	p, err := d.Device.NewQueuePair(depth, notify)
	d.step()
	return killingQueuePair{p, d}, err
}

type killingQueuePair struct {
	rdma.QueuePair
	killingDevice
}

func (p killingQueuePair) Connect(peer rdma.Address) error {
	p.step()
	defer p.step()
	return p.QueuePair.Connect(peer)
}

func (p killingQueuePair) Send(ws []rdma.WorkRequest) error {
	p.step()
	defer p.step()
	return p.QueuePair.Send(ws)
}

func (p killingQueuePair) Poll(into []rdma.Completion, spins int) (int, error) {
	n, err := p.QueuePair.Poll(into, spins)
	if n > 0 {
		p.step()
	}
	return n, err
}

func (p killingQueuePair) Close() error { return p.QueuePair.Close() }

// A scriptedEnd is one end of a conversation with frames of all kinds. The first byte of a frame's
// head is a command: e echoes the body, w writes to the memory that the Token in the body names,
// and s exposes memory for the sender. The head of a reply begins with r.
type scriptedEnd struct {
	testing.TB
	c        *conn
	body     []byte
	deferred []func()
	replies  int
	written  int
	onFull   func()
}

const (
	shownSize = 300_000 // two writes
	shownID   = 9
)

func (p *scriptedEnd) Buffer(h transport.Header) []byte {
	p.body = make([]byte, h.Size)
	return p.body
}

func (p *scriptedEnd) Arrived(h transport.Header, n int) {
	if n < h.Size {
		return
	}
	if len(h.Head) == 0 && h.ID == shownID {
		if p.written++; p.written%2 == 0 {
			p.deferred = append(p.deferred, p.onFull)
		}
		return
	}
	body := p.body
	switch h.Head[0] {
	case 'e':
		p.deferred = append(p.deferred, func() { p.send('r', body) })
	case 's':
		p.deferred = append(p.deferred, func() { p.expose(func() { p.send('r', nil) }) })
	case 'w':
		to := transport.Token(body)
		p.deferred = append(p.deferred, func() {
			for range 2 { // the second write must renew the memory
				p.c.Send(&transport.Frame{To: to, ID: shownID, Body: make([]byte, shownSize), Done: ignore})
			}
		})
	case 'r':
		p.replies++
	}
}

func (p *scriptedEnd) send(what byte, body []byte) {
	p.c.Send(&transport.Frame{Head: []byte{what}, Body: body, Done: ignore})
}

// expose asks the peer to write twice to exposed memory. After both writes it calls the function
// full.
func (p *scriptedEnd) expose(full func()) {
	to, release, err := p.c.Expose(shownID, make([]byte, shownSize))
	if err != nil {
		return // the Conn has failed; Progress returns the error
	}
	p.onFull = func() { release(); full() }
	p.send('w', to[:])
}

// progress calls the Conn's Progress and runs the deferred functions.
func (p *scriptedEnd) progress() error {
	_, err := p.c.Progress(p, 1)
	todo := p.deferred
	p.deferred = nil
	for _, do := range todo {
		do()
	}
	return err
}

// await progresses until the given number of replies has arrived.
func (p *scriptedEnd) await(replies int) {
	for p.replies < replies {
		if err := p.progress(); err != nil {
			p.Fatal(err)
		}
	}
}

const (
	victimAddrVar = "TUTTI_VERBS_TEST_ADDR"
	victimStepVar = "TUTTI_VERBS_TEST_STEP"
)

// TestDeviceVictim runs in the process that is killed. It passes if the process survives.
func TestDeviceVictim(t *testing.T) {
	if os.Getenv(victimAddrVar) == "" {
		// Reason: this is not a test by itself. It runs only in the process that
		// TestDevicePeerIsKilledAtAnyStep starts.
		t.Skip("TestDevicePeerIsKilledAtAnyStep starts this as a process of its own")
	}
	tr, err := New(Options{Setup: tcp.New(tcp.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	v := tr.(greeter).Transport
	left := new(atomic.Int64)
	v.device = killingDevice{v.device, left}
	step, _ := strconv.Atoi(os.Getenv(victimStepVar))
	left.Store(int64(step))
	c, err := tr.Dial(context.Background(), os.Getenv(victimAddrVar))
	if err != nil {
		t.Fatal(err)
	}
	p := &scriptedEnd{TB: t, c: c.(*conn)}
	for i, n := range []int{64, 4096, 60_000, 60_000, 1 << 20, 0} {
		p.send('e', make([]byte, n))
		p.await(i + 1)
	}
	p.send('s', nil)
	p.await(7)
	p.expose(func() { p.replies++ })
	p.await(8)
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

// The peer is killed at each step of a conversation in turn. Each time this end must soon detect
// the death and release everything. A device that still has a queue pair or registered memory
// cannot be closed.
func TestDevicePeerIsKilledAtAnyStep(t *testing.T) {
	needsDevice(t)
	leak.Check(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(Options{Setup: tcp.New(tcp.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan transport.Conn, 1)
	addr, err := tr.Serve(l, func(c transport.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	step, begin := 1, time.Now()
	for withVictim(t, addr, step, accepted) {
		// On so slow a machine every step would take too long.
		if step++; time.Since(begin) > testTimeout {
			step += 6
		}
	}
	t.Logf("killed at %d steps", step-1)
	if step < 20 {
		t.Errorf("killed at %d steps only: the conversation has more", step-1)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

// testTimeout bounds the time of a test, also on an emulated machine.
const testTimeout = 60 * time.Second

// withVictim talks to a process that is killed at the given step. It reports whether the process
// was killed.
func withVictim(t *testing.T, addr string, step int, accepted chan transport.Conn) (killed bool) {
	t.Helper()
	victim := exec.Command(os.Args[0], "-test.run", "^TestDeviceVictim$")
	victim.Env = append(os.Environ(), victimAddrVar+"="+addr, fmt.Sprintf("%s=%d", victimStepVar, step))
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	var c transport.Conn
	select {
	case c = <-accepted:
	case err := <-ended:
		t.Fatalf("step %d: the victim ended before it came: %v", step, err)
	}
	c.(pendingConn).Admit()
	p := &scriptedEnd{TB: t, c: c.(pendingConn).conn}
	var died time.Time
	var exit error
	for deadline := time.Now().Add(testTimeout); ; {
		err := p.progress()
		if died.IsZero() {
			select {
			case exit = <-ended:
				died = time.Now()
			default:
			}
		}
		if err != nil {
			if !errors.Is(err, fault.LinkLost) {
				t.Errorf("step %d: got %v, want %v", step, err, fault.LinkLost)
			}
			break
		}
		if time.Now().After(deadline) {
			victim.Process.Kill()
			t.Fatalf("step %d: no error %v after the peer's death", step, time.Since(died))
		}
	}
	p.c.Close()
	if died.IsZero() {
		exit = <-ended
	} else if late := time.Since(died); late > testTimeout/2 {
		t.Errorf("step %d: the peer's death showed after %v", step, late)
	}
	var status *exec.ExitError
	if errors.As(exit, &status) && status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("step %d: the victim failed: %v", step, exit)
	}
	return exit != nil
}
