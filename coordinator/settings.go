package coordinator

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/moby/sys/atomicwriter"

	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
)

// Settings are the values that may change while a coordinator runs. Autotune tries them, and they
// can be saved and loaded. Cycle, Fusion and Cache do not change a bit of any result. Algorithm
// changes the order in which shares are folded, on all ranks at once.
type Settings struct {
	Cycle  time.Duration `json:"cycle_ns"`     // see WithCycle
	Fusion int           `json:"fusion_bytes"` // see WithFusion
	// Cache says whether the response cache is used, see WithCache.
	Cache bool `json:"cache"`
	// Algorithm is DefaultAlgorithm, Ring or ReduceScatterAllGather.
	Algorithm string `json:"algorithm"`
}

// The classes of algorithms for the AllReduces of a coordinator.
const (
	// DefaultAlgorithm is the algorithm that the communicator's table names for large vectors.
	DefaultAlgorithm = "table"
	Ring             = "ring"
	// ReduceScatterAllGather is a reduce-scatter followed by an allgather. It folds in the order of
	// the algorithm that the table names for large vectors.
	ReduceScatterAllGather = "reduce_scatter+allgather"
)

// classes lists the classes of algorithms. Messages carry a class as its index in this list.
func classes() []string {
	return []string{DefaultAlgorithm, Ring, ReduceScatterAllGather}
}

// useClass sets the algorithms of a process set to the algorithms of a class:
//
//	class                   foldAlgorithm and vectorAlgorithm
//	DefaultAlgorithm        the results of algorithmOf
//	Ring                    the ring
//	ReduceScatterAllGather  "", so that foldByReduceScatter is used
func (s *setComm) useClass(class uint8) *setComm {
	switch classes()[class] {
	case Ring:
		s.foldAlgorithm, s.vectorAlgorithm = Ring, Ring
	case ReduceScatterAllGather:
		s.foldAlgorithm, s.vectorAlgorithm = "", ""
	default:
		s.foldAlgorithm, s.vectorAlgorithm = algorithmOf(s.c)
	}
	return s
}

// setClass makes all later operations use a class of algorithms.
func (x *executor) setClass(class uint8) {
	x.class = class
	for _, s := range x.sets {
		if s.c != nil {
			s.useClass(class)
		}
	}
}

// LoadSettings reads a file that Save has written. For a file with other contents it returns
// fault.Misuse.
func LoadSettings(file string) (Settings, error) {
	var s Settings
	b, err := os.ReadFile(file)
	if err != nil {
		return s, fault.New(fault.Misuse, "load settings", -1, "%w; name a readable file that Settings.Save has written", err)
	}
	if err = json.Unmarshal(b, &s); err == nil {
		_, err = s.tuning()
	}
	if err != nil {
		return s, fault.New(fault.Misuse, "load settings", -1,
			"%s: %w; name a file that Settings.Save wrote, or remove this one: TUTTI_AUTOTUNE=1 searches for settings, and TUTTI_AUTOTUNE_FILE names the file to write them to", file, err)
	}
	return s, nil
}

// Save writes the settings to a file, as JSON. It replaces the file atomically and keeps its
// permissions. If Save fails, the old file stays. Save refuses links, devices and pipes.
func (s Settings) Save(file string) error {
	b, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if old, err := os.Stat(file); err == nil {
		mode = old.Mode().Perm()
	}
	return atomicwriter.WriteFile(file, append(b, '\n'), mode)
}

// tuning translates settings for the state machines. The error says which values are invalid.
func (s Settings) tuning() (negotiate.Tunables, error) {
	t := negotiate.Tunables{Cycle: negotiate.Duration(s.Cycle), Fusion: s.Fusion, Cache: s.Cache}
	for i, a := range classes() {
		if a == s.Algorithm && s.Cycle >= 0 && s.Fusion >= 0 {
			t.Class = uint8(i)
			return t, nil
		}
	}
	return t, fmt.Errorf("got settings %+v, want Algorithm to be one of %q, and Cycle and Fusion of at least 0", s, classes())
}

// settingsOf converts the state machines' tunables into Settings. The class must be valid.
func settingsOf(t negotiate.Tunables) Settings {
	return Settings{time.Duration(t.Cycle), t.Fusion, t.Cache, classes()[t.Class]}
}

// Settings returns the settings that the last executed tensor used. The result final says whether
// Autotune has finished. Ranks that have waited for the same tensors get the same result.
func (co *Coordinator) Settings() (s Settings, final bool) {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.settings, co.settingsFinal
}

// An Autotune configures the search for settings. A field with the zero value means its default.
// Only rank 0's Autotune is used.
type Autotune struct {
	Steps  int // steps of a sample; default 10
	Warmup int // steps before the first sample; default 30
	// Span is the busy time after which a sample of at least three steps may end; the default is
	// 250 ms. Busy time is the time in which rank 0 has a tensor in flight. Long steps vary less,
	// so fewer steps are enough. Four times Span is enough for the warm-up.
	Span    time.Duration
	Samples int // the largest number of samples, 1 to 64; default 24
	// Log gets a line of CSV for each sample. It may be nil. One goroutine writes to it. Only Close
	// waits for that goroutine, for at most 5 s.
	Log  io.Writer
	File string // the file to write the found settings to, see LoadSettings; "": none
}

// These are the default and the upper bound of Autotune.Samples. A job is slower while it is tuned,
// so a longer search is not worth its cost.
const (
	defaultSamples = 24
	maxSamples     = 64
)

// WithAutotune makes rank 0 try settings. For each candidate it measures the bytes executed per
// second of busy time. The last samples compare the best settings with the initial settings again:
// two pairs of samples, or one pair if Autotune.Samples is below 8. If the best settings win every
// pair, rank 0 keeps them, and otherwise the initial settings. If Autotune.Samples is below 4,
// there are no such pairs, and the best settings win if they were faster than the initial settings
// by a tenth. All ranks change settings at the same point in the order of tensors. A step ends when
// the first tensor of a sample is executed again.
func WithAutotune(a Autotune) Option { return func(o *options) { o.autotune = &a } }

// WithSettings makes the coordinator begin with the given settings. Only rank 0's settings are
// used.
func WithSettings(s Settings) Option { return func(o *options) { o.settings = &s } }

// Deterministic keeps the algorithm that the table names. Neither Autotune nor saved settings
// change it, so results have the same bits from run to run.
func Deterministic() Option { return func(o *options) { o.deterministic = true } }

// IsDeterministic reports whether this rank has the option Deterministic.
func (co *Coordinator) IsDeterministic() bool { return co.opts.deterministic }

// beginTuning prepares the search. If WithSettings or TUTTI_AUTOTUNE_FILE has given initial
// settings, beginTuning sends them to all ranks.
func (co *Coordinator) beginTuning() {
	now := negotiate.Tunables{Cycle: co.cfg.Cycle, Fusion: co.cfg.Fusion, Cache: co.cfg.Cache > 0}
	if co.opts.settings != nil {
		now, _ = co.opts.settings.tuning() // newOptions has validated them
		if co.opts.deterministic {
			now.Class = 0
		}
		co.stepCoordinator(negotiate.Retune{Tuning: now})
	}
	if co.opts.autotune == nil {
		return
	}
	conf := *co.opts.autotune
	if conf.Samples <= 0 {
		conf.Samples = defaultSamples
	}
	co.tuneLog = newTuneLogWriter(conf.Samples, co.log)
	var err error
	if co.sampler, err = newSampler(conf, co.opts.deterministic, now, co.tuneLog); err != nil {
		co.log.warn("tutti: coordinator: autotune does not start: " + err.Error())
		return
	}
	co.stepCoordinator(negotiate.Retune{Tuning: co.sampler.tuning(co.sampler.tuner.Ask())})
}

// sample counts a Bucket. If the Bucket completes a sample, sample changes the settings.
func (co *Coordinator) sample(b *negotiate.Bucket) {
	s := co.sampler
	if s == nil {
		return
	}
	next, change := s.bucketDone(co.now(), b)
	if !change {
		return
	}
	next.Final = s.tuner.Finished()
	co.stepCoordinator(negotiate.Retune{Tuning: next})
	if !next.Final {
		return
	}
	co.sampler = nil
	if file := s.conf.File; file != "" {
		s.log.enqueueAlways(func() error { return settingsOf(next).Save(file) })
	}
}

// publishSettings sets the result of Settings. The executor calls it in the order of tensors,
// before it completes a tensor. If a rank published settings as soon as it learned of them, ranks
// would disagree until the slowest rank had learned of them, too.
func (co *Coordinator) publishSettings(t negotiate.Tunables) {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.settings, co.settingsFinal = settingsOf(t), t.Final
}
