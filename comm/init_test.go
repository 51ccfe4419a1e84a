package comm_test

import (
	"context"
	"errors"
	"strings"
	"testing"

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
