package coordinator

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
)

// Defaults of Start's options. Bytes are those of the tensors.
const (
	DefaultCycle          = time.Millisecond
	DefaultFusion         = 128 << 20
	DefaultMaxFusedTensor = 256 << 10
	DefaultPartition      = 4_096_000 // in shared memory; see DefaultWirePartition
	DefaultCredit         = 16 << 20  // from the first tensor with a Priority on; before, 1 GiB
	DefaultCache          = 1024
	DefaultStallWarn      = 60 * time.Second
	DefaultStallEnd       = comm.DefaultTimeout
)

// An Option changes how Start sets a coordinator up. Rank 0's hold for all.
type Option func(*options)

type options struct {
	cfg negotiate.Config
	log *slog.Logger

	autotune      *Autotune // see tune.go; rank 0's count
	settings      *Settings
	deterministic bool
}

// WithCycle sets how long a submission waits for company: that long on its rank
// before it is told to rank 0, unless it completes a step or a group or somebody
// waits for it, and as long there when it is ready and others are half submitted.
func WithCycle(d time.Duration) Option {
	return func(o *options) { o.cfg.Cycle = negotiate.Duration(d) }
}

// WithFusion sets the most bytes that are fused; 0 fuses nothing.
func WithFusion(bytes int) Option { return func(o *options) { o.cfg.Fusion = bytes } }

// WithMaxFusedTensor sets the size in bytes of the largest tensor that is fused.
func WithMaxFusedTensor(bytes int) Option { return func(o *options) { o.cfg.MaxFusedTensor = bytes } }

// DefaultWirePartition is the default of WithPartition where tensors of that size are
// reduced by messages. Between one part and the next the ranks wait for each other,
// by messages longer than in shared memory.
const DefaultWirePartition = 16_384_000

func defaultPartition(c *comm.Comm) int {
	if folds, _ := algorithmOf(c); folds == inRankOrder {
		return DefaultPartition
	}
	return DefaultWirePartition
}

// WithPartition sets the bytes of the parts that large tensors are cut into. It
// enters the order in which elements of such tensors are folded.
func WithPartition(bytes int) Option { return func(o *options) { o.cfg.Partition = bytes } }

// WithCredit sets about how many bytes are ordered ahead of what rank 0 has
// carried out: the most that an urgent tensor waits for. It holds from the start;
// DefaultCredit from the first tensor with a Priority on, so that without any no rank
// waits for orders.
func WithCredit(bytes int) Option { return func(o *options) { o.credit(bytes) } }

// credit is for a credit that somebody asks for.
func (o *options) credit(bytes int) { o.cfg.Credit, o.cfg.UnprioritizedCredit = bytes, 0 }

// unprioritizedCredit is in bytes what the credit is that nobody has asked for, while no tensor
// has had a priority.
const unprioritizedCredit = 1 << 30

// WithCache sets how many tensors are negotiated by a bit each; 0: none.
func WithCache(tensors int) Option { return func(o *options) { o.cfg.Cache = tensors } }

// WithStallLimits sets after how long a tensor that some ranks have submitted and
// others not is reported in the log of rank 0, and after how long the coordinator
// ends with fault.Timeout on all ranks, naming the missing ones; 0 means never.
func WithStallLimits(warn, end time.Duration) Option {
	return func(o *options) { o.cfg.StallWarn, o.cfg.StallEnd = negotiate.Duration(warn), negotiate.Duration(end) }
}

// WithLogger sends warnings to log; the default prints them on standard error.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

func newOptions(c *comm.Comm, opts []Option) (*options, error) {
	o := &options{cfg: negotiate.Config{
		Size: c.Size(), Cycle: negotiate.Duration(DefaultCycle), Fusion: DefaultFusion, MaxFusedTensor: DefaultMaxFusedTensor,
		Partition: defaultPartition(c), Credit: DefaultCredit, UnprioritizedCredit: unprioritizedCredit, Cache: DefaultCache,
		StallWarn: negotiate.Duration(DefaultStallWarn), StallEnd: negotiate.Duration(DefaultStallEnd),
	}}
	if err := o.environment(c.WorldRank(c.Rank())); err != nil {
		return nil, err
	}
	if err := o.tuneEnvironment(c); err != nil {
		return nil, err
	}
	for _, opt := range opts {
		opt(o)
	}
	if o.log == nil {
		o.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if o.settings != nil {
		if _, err := o.settings.tuning(); err != nil {
			return nil, fault.New(fault.Misuse, "start coordinator", c.WorldRank(c.Rank()), "%w", err)
		}
	}
	if o.autotune != nil && o.autotune.Samples > maxSamples {
		return nil, fault.New(fault.Misuse, "start coordinator", c.WorldRank(c.Rank()), "Autotune.Samples is %d; at most %d are tried", o.autotune.Samples, maxSamples)
	}
	cfg := &o.cfg
	if cfg.Cycle < 0 || cfg.Fusion < 0 || cfg.MaxFusedTensor < 0 || cfg.Cache < 0 || cfg.StallWarn < 0 || cfg.StallEnd < 0 ||
		cfg.Partition < 1 || cfg.Credit < 1 || cfg.Cache > maxCache {
		return nil, fault.New(fault.Misuse, "start coordinator", c.WorldRank(c.Rank()),
			"options %+v; partition and credit must be above 0, the cache at most %d, nothing negative", *cfg, maxCache)
	}
	return o, nil
}

// maxCache bounds the tables that the cache needs.
const maxCache = 1 << 20

// agree gives all ranks rank 0's configuration.
func (o *options) agree(ctx context.Context, c *comm.Comm) (negotiate.Config, error) {
	cfg := o.cfg
	words := []int64{int64(cfg.Cycle), int64(cfg.Fusion), int64(cfg.MaxFusedTensor), int64(cfg.Partition), int64(cfg.Credit), int64(cfg.Cache), int64(cfg.StallWarn), int64(cfg.StallEnd), int64(cfg.UnprioritizedCredit)}
	if err := comm.Broadcast(ctx, c, words, 0); err != nil {
		return cfg, err
	}
	cfg.Cycle, cfg.StallWarn, cfg.StallEnd = negotiate.Duration(words[0]), negotiate.Duration(words[6]), negotiate.Duration(words[7])
	cfg.Fusion, cfg.MaxFusedTensor, cfg.Partition, cfg.Credit, cfg.Cache = int(words[1]), int(words[2]), int(words[3]), int(words[4]), int(words[5])
	cfg.UnprioritizedCredit = int(words[8])
	return cfg, nil
}

// A variable is one of the environment's; the first of its names that is set
// counts. Horovod's and BytePS's have their units.
type variable struct {
	names []string
	set   func(o *options, v float64)
}

func variables() []variable {
	seconds := func(v float64) negotiate.Duration { return negotiate.Duration(v * float64(negotiate.Second)) }
	return []variable{
		{[]string{"TUTTI_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"}, func(o *options, v float64) { o.cfg.Fusion = int(v) }},
		{[]string{"TUTTI_CYCLE_TIME", "HOROVOD_CYCLE_TIME"}, func(o *options, v float64) { o.cfg.Cycle = negotiate.Duration(v * float64(negotiate.Millisecond)) }},
		{[]string{"TUTTI_ALONE_BYTES"}, func(o *options, v float64) { o.cfg.MaxFusedTensor = int(v) }},
		{[]string{"TUTTI_CREDIT_BYTES"}, func(o *options, v float64) { o.credit(int(v)) }},
		{[]string{"TUTTI_CACHE_CAPACITY", "HOROVOD_CACHE_CAPACITY"}, func(o *options, v float64) { o.cfg.Cache = int(v) }},
		{[]string{"TUTTI_PARTITION_BYTES", "BYTEPS_PARTITION_BYTES"}, func(o *options, v float64) { o.cfg.Partition = int(v) }},
		{[]string{"TUTTI_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS"}, func(o *options, v float64) { o.cfg.StallWarn = seconds(v) }},
		{[]string{"TUTTI_STALL_SHUTDOWN_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"}, func(o *options, v float64) { o.cfg.StallEnd = seconds(v) }},
		{[]string{"TUTTI_DETERMINISTIC"}, func(o *options, v float64) { o.deterministic = v != 0 }},
		{[]string{"TUTTI_STALL_CHECK_DISABLE", "HOROVOD_STALL_CHECK_DISABLE"}, func(o *options, v float64) {
			if v != 0 {
				o.cfg.StallWarn, o.cfg.StallEnd = 0, 0
			}
		}},
	}
}

// environment takes what the variables say; options given in the program win.
func (o *options) environment(rank int) error {
	for _, v := range variables() {
		for _, name := range v.names {
			text := os.Getenv(name)
			if text == "" {
				continue
			}
			f, err := strconv.ParseFloat(text, 64)
			if err != nil || !(f >= 0 && f < 1<<53) {
				return fault.New(fault.Misuse, "start coordinator", rank, "%s=%q is not a number from 0 on", name, text)
			}
			v.set(o, f)
			break
		}
	}
	return nil
}
