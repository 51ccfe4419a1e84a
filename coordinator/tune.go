package coordinator

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/autotune"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
)

// Settings are what may change while a coordinator runs: what Autotune tries, and
// what can be saved and loaded. Cycle, Fusion and Cache change no bit of any
// result; Algorithm changes the order in which shares are folded, on all ranks at
// once.
type Settings struct {
	Cycle     time.Duration `json:"cycle_ns"`     // see WithCycle
	Fusion    int           `json:"fusion_bytes"` // see WithFusion
	Cache     bool          `json:"cache"`        // tensors are negotiated by a bit; see WithCache
	Algorithm Algorithm     `json:"algorithm"`
}

// An Algorithm is a class of algorithms for the AllReduces of a coordinator.
type Algorithm string

// The classes.
const (
	ByTable Algorithm = "table" // what the communicator's table gives large vectors
	Ring    Algorithm = "ring"
	InTwo   Algorithm = "reduce_scatter+allgather" // two calls, each by the table
)

func classes() []Algorithm { return []Algorithm{ByTable, Ring, InTwo} }

// by is what a class means for one group; table is the table's own choice.
func (s *members) by(class uint8) *members {
	switch classes()[class] {
	case Ring:
		s.algorithm = string(Ring)
	case InTwo:
		s.algorithm = ""
	default:
		s.algorithm = algorithmOf(s.c)
	}
	return s
}

// tuned has all that comes from now on go by another class.
func (x *executor) tuned(class uint8) {
	if int(class) >= len(classes()) {
		return
	}
	x.class = class
	for _, s := range x.sets {
		if s.c != nil {
			s.by(class)
		}
	}
}

// LoadSettings reads what Save wrote. Anything else gets fault.Misuse.
func LoadSettings(file string) (Settings, error) {
	var s Settings
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err == nil {
		_, err = s.tuning()
	}
	if err != nil {
		return s, fault.New(fault.Misuse, "load settings", -1, "%s: %w", file, err)
	}
	return s, nil
}

// Save writes the settings to a file, as JSON.
func (s Settings) Save(file string) error {
	b, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

func (s Settings) tuning() (negotiate.Tuning, error) {
	t := negotiate.Tuning{Cycle: negotiate.Span(s.Cycle), Fusion: s.Fusion, Cache: s.Cache}
	for i, a := range classes() {
		if a == s.Algorithm && s.Cycle >= 0 && s.Fusion >= 0 {
			t.Class = uint8(i)
			return t, nil
		}
	}
	return t, fmt.Errorf("settings %+v: the algorithm is one of %q, nothing negative", s, classes())
}

func settingsOf(t negotiate.Tuning) Settings {
	return Settings{time.Duration(t.Cycle), t.Fusion, t.Cache, classes()[t.Class]}
}

// Settings are those that this rank goes by, and whether Autotune will not change
// them any more.
func (co *Coordinator) Settings() (s Settings, settled bool) {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.settings, co.settled
}

// An Autotune says how settings are sought; the zero value of a field means the
// default. Rank 0's counts.
type Autotune struct {
	Steps  int // that one sample is measured over; 10
	Warmup int // steps before the first; 30
	// Span is how long a sample takes at least, once it has had three steps; 250 ms.
	// Of large models, whose steps vary less, it has no more then. Four times as long
	// is enough to warm up.
	Span time.Duration
	Log  io.Writer // gets a line of CSV for each sample; nil: none
	File string    // gets the settings that were found, see LoadSettings; "": none
}

// WithAutotune has rank 0 try settings, measure how many bytes are carried out under
// each per second in which something was under way, and settle for the best after 40
// samples or fewer. It decides, and all ranks switch at the same place in the order of
// tensors. A step ends when the first tensor of a sample is carried out again.
func WithAutotune(a Autotune) Option { return func(o *options) { o.tune = &a } }

// WithSettings begins with settings that were saved; rank 0's count.
func WithSettings(s Settings) Option { return func(o *options) { o.settings = &s } }

// Deterministic has Autotune, and saved settings, leave the algorithm as the table
// gives it, so that results have the same bits from run to run.
func Deterministic() Option { return func(o *options) { o.frozen = true } }

// A sampler measures on rank 0 how well settings do. Who has the turn has it.
type sampler struct {
	conf  Autotune
	tuner *autotune.Tuner
	axes  int

	marker string // the first tensor of the sample: when it comes again, a step has ended
	seen   int
	skip   int            // steps before the measurement begins
	warm   negotiate.Time // when that is over all the same; never: not before
	bytes  int
	way    underway
}

// leastSteps of a sample, however long they take.
const leastSteps = 3

// newSampler begins at the settings that hold.
func newSampler(conf Autotune, frozen bool, now negotiate.Tuning) (*sampler, error) {
	axes := []autotune.Axis{
		{Name: "fusion", Low: 64 << 10, High: 256 << 20, Log: true},
		{Name: "cycle", Low: float64(100 * negotiate.Microsecond), High: float64(50 * negotiate.Millisecond), Log: true},
		{Name: "cache", Choices: 2},
	}
	if !frozen {
		axes = append(axes, autotune.Axis{Name: "algorithm", Choices: len(classes())})
	}
	within := func(i int, v float64) float64 { return min(max(v, axes[i].Low), axes[i].High) }
	start := autotune.Point{within(0, float64(now.Fusion)), within(1, float64(now.Cycle)), 0, float64(now.Class)}
	if now.Cache {
		start[2] = 1
	}
	if conf.Steps <= 0 {
		conf.Steps = 10
	}
	if conf.Warmup <= 0 {
		conf.Warmup = 30
	}
	if conf.Span <= 0 {
		conf.Span = 250 * time.Millisecond
	}
	t, err := autotune.New(axes, autotune.Options{Start: start[:len(axes)]})
	if err != nil {
		return nil, err
	}
	s := &sampler{conf: conf, tuner: t, axes: len(axes), skip: conf.Warmup, warm: 4 * negotiate.Time(conf.Span)}
	if conf.Log != nil {
		_, err = fmt.Fprintln(conf.Log, "sample,cycle_ms,fusion_bytes,cache,algorithm,bytes_per_second")
	}
	return s, err
}

// tuning is what a point stands for.
func (s *sampler) tuning(p autotune.Point) negotiate.Tuning {
	t := negotiate.Tuning{Fusion: int(p[0]), Cycle: negotiate.Span(p[1]), Cache: p[2] == 1}
	if s.axes > 3 {
		t.Class = uint8(p[3])
	}
	return t
}

// carried counts a Bucket that rank 0 has carried out. It returns what to try
// next when a sample is complete, and whether that is for good.
func (s *sampler) carried(now negotiate.Time, b *negotiate.Bucket) (next negotiate.Tuning, change bool) {
	for i := range b.Refs {
		t := b.Refs[i].Tensor
		s.bytes += negotiate.Size(t, b.Refs[i].Rows, b.Part, b.Parts)
		if b.Part+1 < b.Parts {
			continue
		}
		if s.marker == "" {
			s.marker = t.Name
		}
		if t.Name != s.marker {
			continue
		}
		if s.stepped(now) {
			return s.next(now), true
		}
	}
	return next, false
}

// stepped counts a step, and reports whether it was a sample's last.
func (s *sampler) stepped(now negotiate.Time) bool {
	s.seen++
	ran := s.way.ran(now)
	if s.seen <= s.skip && s.seen > leastSteps && ran >= s.warm { // steps are long enough for fewer to do
		s.skip = s.seen - 1
	}
	steps := s.seen - 1 - s.skip
	switch {
	case steps < 0:
		return false
	case steps == 0:
		s.bytes = 0
		s.way.reset(now)
		return false
	}
	return steps >= s.conf.Steps || steps >= leastSteps && ran >= negotiate.Time(s.conf.Span)
}

// next tells the tuner, and begins another sample, whose first step is not
// measured: some of it went by what held before.
func (s *sampler) next(now negotiate.Time) negotiate.Tuning {
	tried := s.tuner.Ask()
	rate := float64(s.bytes) / (math.Max(1, float64(s.way.ran(now))) / float64(negotiate.Second))
	s.tuner.Tell(rate)
	if s.conf.Log != nil {
		t := s.tuning(tried)
		fmt.Fprintf(s.conf.Log, "%d,%.3f,%d,%v,%s,%.0f\n", len(s.tuner.Samples()), float64(t.Cycle)/float64(negotiate.Millisecond), t.Fusion, t.Cache, classes()[t.Class], rate)
	}
	s.marker, s.seen, s.skip, s.warm, s.bytes = "", 0, 1, never, 0
	return s.tuning(s.tuner.Ask())
}

// beginTuning has rank 0 tell the settings that it begins with, if they are others
// than the options say, and prepare to try some.
func (co *Coordinator) beginTuning() {
	now := negotiate.Tuning{Cycle: co.cfg.Cycle, Fusion: co.cfg.Fusion, Cache: co.cfg.Cache > 0}
	if co.opts.settings != nil {
		now, _ = co.opts.settings.tuning() // newOptions has looked at them
		if co.opts.frozen {
			now.Class = 0
		}
		co.lead(negotiate.Retune{Tuning: now})
	}
	if co.opts.tune == nil {
		return
	}
	var err error
	if co.sampler, err = newSampler(*co.opts.tune, co.opts.frozen, now); err != nil {
		co.log.Warn("tutti: the coordinator cannot tune itself: " + err.Error())
		return
	}
	co.lead(negotiate.Retune{Tuning: co.sampler.tuning(co.sampler.tuner.Ask())})
}

// sample counts a Bucket, and switches when it completes a sample.
func (co *Coordinator) sample(b *negotiate.Bucket) {
	s := co.sampler
	if s == nil {
		return
	}
	next, change := s.carried(co.now(), b)
	if !change {
		return
	}
	co.lead(negotiate.Retune{Tuning: next})
	if !s.tuner.Settled() {
		return
	}
	co.sampler = nil
	co.mu.Lock()
	co.settled = true
	co.mu.Unlock()
	if file := s.conf.File; file != "" {
		if err := settingsOf(next).Save(file); err != nil {
			co.log.Warn("tutti: the coordinator's settings: " + err.Error())
		}
	}
}

// switchTo is what all ranks do at one place in the order.
func (co *Coordinator) switchTo(t negotiate.Tuning) {
	co.exec.add(job{tuned: &t})
	if int(t.Class) < len(classes()) {
		co.mu.Lock()
		co.settings = settingsOf(t)
		co.mu.Unlock()
	}
}

// tuneEnvironment reads what rank 0's environment asks for: TUTTI_AUTOTUNE=1, or
// HOROVOD_AUTOTUNE=1, with a log in the file TUTTI_AUTOTUNE_LOG, or
// HOROVOD_AUTOTUNE_LOG; TUTTI_AUTOTUNE_FILE is loaded if it is there, and else
// written when settings have been found.
func (o *options) tuneEnvironment(c *comm.Comm) error {
	if c.Rank() != 0 {
		return nil
	}
	file := os.Getenv("TUTTI_AUTOTUNE_FILE")
	if file != "" {
		if _, err := os.Stat(file); err == nil {
			s, err := LoadSettings(file)
			o.settings = &s
			return err
		}
	}
	switch on := first("TUTTI_AUTOTUNE", "HOROVOD_AUTOTUNE"); on {
	case "", "0":
		return nil
	case "1":
	default:
		return fault.New(fault.Misuse, "start coordinator", c.WorldRank(0), "TUTTI_AUTOTUNE is %q; 1 turns it on, 0 off", on)
	}
	o.tune = &Autotune{File: file}
	if name := first("TUTTI_AUTOTUNE_LOG", "HOROVOD_AUTOTUNE_LOG"); name != "" {
		o.tune.Log = &appender{name}
	}
	return nil
}

// first is the value of the first of some variables that is set.
func first(names ...string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

// An appender writes at the end of a file, which it holds open for no longer.
type appender struct{ name string }

// Write implements io.Writer.
func (a *appender) Write(b []byte) (int, error) {
	f, err := os.OpenFile(a.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := f.Write(b)
	if e := f.Close(); err == nil {
		err = e
	}
	return n, err
}
