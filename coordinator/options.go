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

// The defaults of Start's options. The comment of each option states its default. Sizes are in
// bytes.
const (
	defaultCycle            = time.Millisecond
	defaultFusion           = 128 << 20
	defaultMaxFusedTensor   = 256 << 10
	defaultSharedPartition  = 4_096_000
	defaultMessagePartition = 16_384_000
	defaultCredit           = 16 << 20
	unprioritizedCredit     = 1 << 30
	defaultCache            = 1024
	defaultStallWarn        = 60 * time.Second
	defaultStallEnd         = 10 * time.Minute
)

// An Option changes how Start sets a coordinator up. Rank 0's options apply to all ranks.
type Option func(*options)

// The type options holds the settings from rank 0's environment and program.
type options struct {
	cfg negotiate.Config
	log *slog.Logger

	autotune      *Autotune // nil: Autotune is off
	settings      *Settings // nil: the values in cfg
	deterministic bool
}

// WithCycle sets the time for which a submission waits to be fused with others. The default is 1
// ms. Each rank collects its submissions for this time before it sends them to rank 0. It sends
// them earlier if a submission completes a step or a group, or if a goroutine waits. While there
// are tensors that only some ranks have submitted, rank 0 holds back ready tensors for the same
// time.
func WithCycle(d time.Duration) Option {
	return func(o *options) { o.cfg.Cycle = negotiate.Duration(d) }
}

// WithFusion sets the maximum number of bytes that are fused into one call. The default is 128 MiB.
// With 0 nothing is fused.
func WithFusion(bytes int) Option { return func(o *options) { o.cfg.Fusion = bytes } }

// WithMaxFusedTensor sets the size in bytes of the largest tensor that is fused with other tensors.
// The default is 256 KiB.
func WithMaxFusedTensor(bytes int) Option { return func(o *options) { o.cfg.MaxFusedTensor = bytes } }

// defaultPartition returns the default of WithPartition. It is larger over messages than in shared
// memory, because the ranks wait for each other after each part, and that wait is longer over
// messages.
func defaultPartition(c *comm.Comm) int {
	if folds, _ := algorithmOf(c); folds == inRankOrder {
		return defaultSharedPartition
	}
	return defaultMessagePartition
}

// WithPartition sets the size in bytes of the parts into which a larger tensor is cut. An urgent
// tensor then waits for one part and not for the whole tensor. The default is 4,096,000 in shared
// memory and 16,384,000 over messages. The size changes the order in which the elements of such
// tensors are folded, and therefore their bits.
func WithPartition(bytes int) Option { return func(o *options) { o.cfg.Partition = bytes } }

// WithCredit sets the approximate maximum number of bytes that rank 0 has ordered and not yet
// executed. An urgent tensor waits for at most this number of bytes. The default is 1 GiB until the
// first tensor with a priority, so that no rank waits for orders. After that it is 16 MiB. A credit
// set by this option applies from the start.
func WithCredit(bytes int) Option { return func(o *options) { o.setCredit(bytes) } }

// setCredit sets a credit that the user asks for. It applies from the start.
func (o *options) setCredit(bytes int) { o.cfg.Credit, o.cfg.UnprioritizedCredit = bytes, 0 }

// WithCache sets the maximum number of tensors in the response cache. A cached tensor is negotiated
// with one bit. The default is 1,024; 0 turns the cache off.
func WithCache(tensors int) Option { return func(o *options) { o.cfg.Cache = tensors } }

// WithStallLimits sets the limits for a stalled tensor, which some ranks have submitted and others
// have not. After warn, 60 s by default, rank 0 logs the ranks that have submitted the tensor, and
// the locations of the missing ranks. After end, 10 minutes by default, the coordinator ends on all
// ranks with a fault.Timeout that names the missing ranks. A limit of 0 is never reached.
func WithStallLimits(warn, end time.Duration) Option {
	return func(o *options) { o.cfg.StallWarn, o.cfg.StallEnd = negotiate.Duration(warn), negotiate.Duration(end) }
}

// WithLogger sends warnings to the given logger. By default they are printed on standard error.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// newOptions merges the defaults, the environment and the program's options, in this order, and
// validates the result.
func newOptions(c *comm.Comm, opts []Option) (*options, error) {
	o := &options{cfg: negotiate.Config{
		Size: c.Size(), Cycle: negotiate.Duration(defaultCycle), Fusion: defaultFusion, MaxFusedTensor: defaultMaxFusedTensor,
		Partition: defaultPartition(c), Credit: defaultCredit, UnprioritizedCredit: unprioritizedCredit, Cache: defaultCache,
		StallWarn: negotiate.Duration(defaultStallWarn), StallEnd: negotiate.Duration(defaultStallEnd),
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
		return nil, fault.New(fault.Misuse, "start coordinator", c.WorldRank(c.Rank()), "Autotune.Samples: got %d, want at most %d", o.autotune.Samples, maxSamples)
	}
	cfg := &o.cfg
	if cfg.Cycle < 0 || cfg.Fusion < 0 || cfg.MaxFusedTensor < 0 || cfg.Cache < 0 || cfg.StallWarn < 0 || cfg.StallEnd < 0 ||
		cfg.Partition < 1 || cfg.Credit < 1 || cfg.Cache > maxCache {
		return nil, fault.New(fault.Misuse, "start coordinator", c.WorldRank(c.Rank()),
			"got options %+v; want partition and credit above 0, a cache of at most %d tensors, and nothing negative", *cfg, maxCache)
	}
	return o, nil
}

// maxCache bounds the tables of the cache, which grow with the number of tensors.
const maxCache = 1 << 20

// agree broadcasts rank 0's configuration and returns it on every rank. The broadcast leaves out
// Size, which every rank already has.
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

// A variable is a setting that can have several names in the environment. The first name that is
// set counts. Variables of Horovod and BytePS keep their units.
type variable struct {
	names []string
	set   func(o *options, v float64)
}

// variables returns all settings that the environment can set, except the settings of Autotune,
// which tuneEnvironment reads.
func variables() []variable {
	seconds := func(v float64) negotiate.Duration { return negotiate.Duration(v * float64(negotiate.Second)) }
	return []variable{
		{[]string{"TUTTI_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"}, func(o *options, v float64) { o.cfg.Fusion = int(v) }},
		{[]string{"TUTTI_CYCLE_TIME", "HOROVOD_CYCLE_TIME"}, func(o *options, v float64) { o.cfg.Cycle = negotiate.Duration(v * float64(negotiate.Millisecond)) }},
		{[]string{"TUTTI_MAX_FUSED_TENSOR_BYTES"}, func(o *options, v float64) { o.cfg.MaxFusedTensor = int(v) }},
		{[]string{"TUTTI_CREDIT_BYTES"}, func(o *options, v float64) { o.setCredit(int(v)) }},
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

// environment applies the variables. The program's options are applied later and take precedence.
func (o *options) environment(rank int) error {
	for _, v := range variables() {
		for _, name := range v.names {
			text := os.Getenv(name)
			if text == "" {
				continue
			}
			f, err := strconv.ParseFloat(text, 64)
			if err != nil || !(f >= 0 && f < 1<<53) {
				return fault.New(fault.Misuse, "start coordinator", rank, "%s: got %q, want a number from 0 on", name, text)
			}
			v.set(o, f)
			break
		}
	}
	return nil
}
