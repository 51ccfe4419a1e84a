package coordinator

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	linked "github.com/tutti-go/tutti/transport/wires"
)

func TestTheDocsListEveryVariable(t *testing.T) {
	for _, file := range []string{"doc.go", "../docs/coordinator.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range variables() {
			for _, name := range v.names {
				if !strings.Contains(string(text), name) {
					t.Errorf("%s says nothing about %s", file, name)
				}
			}
		}
	}
}

func TestTheFirstVariableThatIsSetCounts(t *testing.T) {
	for _, name := range []string{
		"HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "BYTEPS_PARTITION_BYTES",
		"HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "TUTTI_MAX_FUSED_TENSOR_BYTES", "TUTTI_CREDIT_BYTES", "TUTTI_DETERMINISTIC",
	} {
		t.Setenv(name, "2")
	}
	t.Setenv("TUTTI_CYCLE_TIME", "0.5")
	t.Setenv("TUTTI_CACHE_CAPACITY", "3")
	o := new(options)
	if err := o.environment(0); err != nil {
		t.Fatal(err)
	}
	c := o.cfg
	if c.Fusion != 2 || c.Cycle != 500_000 || c.Cache != 3 || c.Partition != 2 || c.MaxFusedTensor != 2 || c.Credit != 2 ||
		c.StallWarn != 2_000_000_000 || c.StallEnd != 2_000_000_000 || !o.deterministic {
		t.Errorf("got %+v, frozen %v", c, o.deterministic)
	}
	t.Setenv("TUTTI_STALL_CHECK_DISABLE", "1")
	if err := o.environment(0); err != nil || o.cfg.StallWarn != 0 || o.cfg.StallEnd != 0 {
		t.Errorf("got %+v, error %v, want no limits", o.cfg, err)
	}
}

func TestACreditThatWasAskedForHoldsFromTheStart(t *testing.T) {
	for _, tc := range []struct {
		what, env        string
		opts             []Option
		credit, unranked int
	}{
		{what: "the default", credit: defaultCredit, unranked: 1 << 30},
		{what: "an option", opts: []Option{WithCredit(700)}, credit: 700},
		{what: "the default's value as an option", opts: []Option{WithCredit(defaultCredit)}, credit: defaultCredit},
		{what: "a variable", env: "800", credit: 800},
		{what: "both", env: "800", opts: []Option{WithCredit(700)}, credit: 700},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Setenv("TUTTI_CREDIT_BYTES", tc.env)
			err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
				opts := tc.opts
				if c.Rank() != 0 {
					opts = []Option{WithCredit(1)} // only rank 0's option counts
				}
				o, err := newOptions(c, opts)
				if err != nil {
					return err
				}
				cfg, err := o.agree(ctx, c)
				if err == nil && (cfg.Credit != tc.credit || cfg.UnprioritizedCredit != tc.unranked) {
					t.Errorf("rank %d: credit %d, and %d without priorities; want %d and %d", c.Rank(), cfg.Credit, cfg.UnprioritizedCredit, tc.credit, tc.unranked)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Rank 0 determines the size of parts. An option of rank 0 must apply on any wire.
func TestPartsAreLargerWhereTheyGoByMessages(t *testing.T) {
	for _, tc := range []struct {
		wire string
		opts []Option
		want int
	}{
		{"memory", nil, defaultSharedPartition},
		{"tcp", nil, defaultMessagePartition},
		{"tcp", []Option{WithPartition(4_096_000)}, 4_096_000},
		{"memory", []Option{WithPartition(1)}, 1},
	} {
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			opts := tc.opts
			if c.Rank() != 0 {
				opts = []Option{WithPartition(2)}
			}
			o, err := newOptions(c, opts)
			if err != nil {
				return err
			}
			cfg, err := o.agree(ctx, c)
			if err == nil && cfg.Partition != tc.want {
				t.Errorf("%s, rank %d: parts of %d bytes, want %d", tc.wire, c.Rank(), cfg.Partition, tc.want)
			}
			return err
		}, comm.WithTransport(linked.All()...), comm.WithTransportName(tc.wire))
		if err != nil {
			t.Error(err)
		}
	}
}
