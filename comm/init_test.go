package comm_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// A process may be a rank of one job at a time. An Init that fails must not count as a job.
func TestASecondInitIsRefusedUntilTheFirstIsClosed(t *testing.T) {
	leak.Check(t)
	ctx := t.Context()
	for range 2 {
		if _, err := comm.Init(ctx, comm.WithTransportName("none")); !errors.Is(err, fault.Misuse) {
			t.Fatalf("a transport that does not exist: got %v, want %v", err, fault.Misuse)
		}
		c, err := comm.Init(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := comm.Init(ctx); wantError(err, fault.Misuse, "got a second Init while the communicator of the first is open", "") != nil {
			t.Errorf("a second Init: got %v, want %v that names the first", err, fault.Misuse)
		}
		if err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error { return c.Barrier(ctx) }); err != nil {
			t.Errorf("Local beside Init: %v", err)
		}
		d, err := c.Dup(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := comm.Init(ctx); !errors.Is(err, fault.Misuse) {
			t.Errorf("an Init after Close of a duplicate: got %v, want %v", err, fault.Misuse)
		}
		if err := c.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// Environment variables describe the job that Init joins. Local must ignore them.
func TestLocalReadsNoEnvironmentVariables(t *testing.T) {
	t.Setenv("TUTTI_TRANSPORT", "none")
	t.Setenv("TUTTI_ALGORITHM", "none")
	t.Setenv("TUTTI_TIMEOUT", "none")
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if got, want := c.Bridge().Wire(), "memory"; got != want {
			t.Errorf("got the transport %q, want %q", got, want)
		}
		return c.Barrier(ctx)
	})
	if err != nil {
		t.Error(err)
	}
	_, err = comm.Init(t.Context())
	if !errors.Is(err, fault.Misuse) && !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), "none") {
		t.Errorf("Init: got %v, want an error about one of the variables", err)
	}
}

// Init waits for a launcher that says nothing. The limit that the program sets takes precedence
// over that of the environment.
func TestInitWaitsForItsLauncherWithinTheTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("PMI_PORT", l.Addr().String())
	t.Setenv("PMI_ID", "0")
	for name, c := range map[string]struct {
		variable string
		options  []comm.Option
	}{
		"TUTTI_TIMEOUT":                    {"200ms", nil},
		"WithTimeout":                      {"", []comm.Option{comm.WithTimeout(200 * time.Millisecond)}},
		"WithTimeout before TUTTI_TIMEOUT": {"1h", []comm.Option{comm.WithTimeout(200 * time.Millisecond)}},
	} {
		t.Setenv("TUTTI_TIMEOUT", c.variable)
		_, err := comm.Init(context.Background(), c.options...)
		if !errors.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "PMI_PORT") {
			t.Errorf("%s: got %v, want Timeout in the meeting", name, err)
		}
	}
	if _, err := comm.Init(context.Background(), comm.WithTimeout(-1)); !errors.Is(err, fault.Misuse) {
		t.Errorf("a negative timeout: got %v, want Misuse before the meeting", err)
	}
}

// A writerFunc is an io.Writer.
type writerFunc func(text string)

func (w writerFunc) Write(b []byte) (int, error) { w(string(b)); return len(b), nil }

// A name with an empty label has no address on any machine, because the resolver refuses it without
// asking a name server.
func TestInitWarnsWhileANameHasNoAddress(t *testing.T) {
	for name, value := range map[string]string{
		"TUTTI_RANK": "1", "TUTTI_SIZE": "2", "TUTTI_ROOT": "no..host:7000", "TUTTI_SECRET": strings.Repeat("5a", 16),
	} {
		t.Setenv(name, value)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := slog.New(slog.NewTextHandler(writerFunc(func(text string) {
		if strings.Contains(text, "rank 1 still looks up a name") && strings.Contains(text, "no..host:7000") {
			cancel()
		}
	}), nil))
	_, err := comm.Init(ctx, comm.WithStallWarning(time.Millisecond), comm.WithLogger(log), comm.WithTimeout(time.Minute))
	if !errors.Is(err, fault.Canceled) || !strings.Contains(err.Error(), "no..host:7000") {
		t.Errorf("got %v, want Canceled after the warning", err)
	}
	if _, err := comm.Init(t.Context(), comm.WithTimeout(time.Millisecond)); !errors.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "WithTimeout") {
		t.Errorf("got %v, want Timeout", err)
	}
}
