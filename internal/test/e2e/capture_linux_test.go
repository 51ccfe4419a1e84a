package e2e

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/internal/vars"
)

// capturePackets is the program of the recording process. It reports that it has begun. It then
// writes the bytes of all packets to standard output until its standard input ends.
func capturePackets() int {
	const everything = 0x0300 // ETH_P_ALL in network byte order
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, everything)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, 64<<20)
	syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Usec: 100_000})
	os.Stdout.WriteString("capturing\n")
	done := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(done)
	}()
	packet := make([]byte, 128<<10)
	for {
		n, _, err := syscall.Recvfrom(fd, packet, 0)
		if n > 0 {
			os.Stdout.Write(packet[:n])
			continue
		}
		select {
		case <-done:
			return 0 // the last read found nothing, so all earlier packets have been written
		default:
		}
		if err != nil && err != syscall.EAGAIN && err != syscall.EINTR {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}

// capture records the packets that pass host n0 while f runs.
func (l *hostNetwork) capture(f func()) []byte {
	l.t.Helper()
	cmd := exec.Command(l.tool, "in", "n0", self(l.t))
	cmd.Env = append(os.Environ(), "HOSTS_LAB="+l.dir, asCapture+"=1")
	cmd.Stderr = os.Stderr
	end, err := cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	began := make([]byte, len("capturing\n"))
	if _, err := io.ReadFull(out, began); err != nil {
		l.t.Fatal(err)
	}
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(out)
		got <- b
	}()
	f()
	end.Close()
	b := <-got
	if err := cmd.Wait(); err != nil {
		l.t.Fatal(err)
	}
	return b
}

func TestACaptureBetweenHostsFindsNoPayloadAndNoSecret(t *testing.T) {
	t.Parallel()
	const ranks, size = 2, 200_000
	for i, wire := range streams() {
		for _, mode := range []string{"by hand", "plain", "tuttirun"} {
			t.Run(wire+" "+mode, func(t *testing.T) {
				l := newHostNetwork(t, ranks)
				root := fmt.Sprintf("10.77.0.10:%d", 7000+i)
				o := instruction{Program: "marked", Bytes: size}
				var key []byte // the job's secret; in mode tuttirun, tuttirun has made it
				seen := l.capture(func() {
					var j *job
					switch mode {
					case "tuttirun":
						j = l.launch(ranks, wire, root, o)
						j.launcher.wantExit(j, 0)
					case "plain":
						j = l.startJob(ranks, wire, root, o, vars.Plain+"=1")
					default:
						j = l.startJob(ranks, wire, root, o)
					}
					for _, p := range j.ranks {
						p.wantExit(j, 0)
					}
					for _, e := range j.events("ended", ranks) {
						key, _ = hex.DecodeString(e.Text)
						if byTuttirun := !bytes.Equal(key, []byte(secret)); len(key) < 16 || byTuttirun != (mode == "tuttirun") {
							t.Errorf("rank %d has a secret of %d bytes, made by tuttirun: %v", e.Rank, len(key), byTuttirun)
						}
					}
				})
				if len(seen) < size {
					t.Fatalf("captured %d bytes, want at least a vector of %d", len(seen), size)
				}
				// In plain mode the capture must find the payload and the handshake. This shows
				// that the search would find them in the other modes, too, if the packets contained
				// them.
				for what, text := range map[string]string{"the payload": strings.Repeat(mark, 3), "the handshake": "tuti"} {
					if found := bytes.Contains(seen, []byte(text)); found != (mode == "plain") {
						t.Errorf("%s is found: %v, want %v", what, found, mode == "plain")
					}
				}
				for _, text := range encodings(key) {
					if bytes.Contains(seen, text) {
						t.Errorf("the secret is found as %q", text)
					}
				}
			})
		}
	}
}

// launch starts a job by tuttirun. Each rank then moves to a separate host, and keeps what it has
// inherited.
func (l *hostNetwork) launch(ranks int, wire, root string, o instruction) *job {
	l.t.Helper()
	j := newJob(l.t)
	script := filepath.Join(l.t.TempDir(), "move")
	text := fmt.Sprintf("#!/bin/sh\nunset %s %s %s\nexport %s=%s HOSTS_LAB=%s\nexec %s in n$%s %s\n",
		vars.ListenFD, vars.LocalRank, vars.LocalSize, vars.Root, root, l.dir, l.tool, vars.Rank, self(l.t))
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		l.t.Fatal(err)
	}
	j.launcher = j.start(exec.Command(self(l.t), "-np", fmt.Sprint(ranks), "--transport", wire, script), nil, asLauncher+"=1", asRank+"="+o.encode())
	return j
}
