package ps

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/ps/internal/storage"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
)

// An Option changes how this rank works or serves.
type Option func(*options)

type options struct {
	part, credit, engines int
	replicas              int
	memory                int64
	lost                  LostWorkers
	optimizers            []optimizer.Optimizer
	log                   *slog.Logger
	alsoServe             bool
	report                time.Duration
	reportTo              io.Writer
}

// Defaults of the options.
const (
	defaultPart   = 4_096_000 // BytePS's BYTEPS_PARTITION_BYTES
	defaultCredit = 64 << 20
	maxEngines    = 4
)

// LostWorkers is what servers do when a worker is lost.
type LostWorkers uint8

const (
	// Fail makes calls that need the lost worker fail with fault.PeerLost. In a synchronous tensor
	// these are each push, and a pull, Set or Snapshot of a worker whose last push belongs to a version
	// that is not complete. In a bounded tensor these are a pull or Snapshot of a worker that has
	// pushed more than the staleness ahead of the lost one. Other pulls, pushes to bounded tensors, and
	// all calls on asynchronous tensors succeed. It is the default.
	Fail LostWorkers = iota
	// Continue completes rounds without the lost worker. Its acknowledged pushes count.
	Continue
)

// newOptions applies the options and checks them.
func newOptions(c *comm.Comm, opts []Option) (*options, error) {
	o := &options{part: defaultPart, credit: defaultCredit, replicas: 1, engines: min(maxEngines, runtime.GOMAXPROCS(0))}
	for _, f := range opts {
		f(o)
	}
	if o.reportTo == nil {
		every, err := reportInterval()
		if err != nil {
			return nil, fault.New(fault.Misuse, "ps connect", c.WorldRank(c.Rank()), "%w", err)
		}
		o.report, o.reportTo = every, os.Stderr
	}
	if o.log == nil {
		o.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	var bad string
	switch {
	case o.part < minPart || o.part > message.MaxBody:
		bad = fmt.Sprintf("WithPart: got %d bytes, want %d to %d", o.part, minPart, message.MaxBody)
	case o.credit < 1:
		bad = fmt.Sprintf("WithCredit: got %d bytes, want at least 1", o.credit)
	case o.replicas < 1:
		bad = fmt.Sprintf("WithReplicas: got %d copies, want at least 1", o.replicas)
	case o.engines < 1:
		bad = fmt.Sprintf("WithEngines: got %d, want at least 1", o.engines)
	case o.memory < 0:
		bad = fmt.Sprintf("WithMemory: got %d bytes, want 0 (no bound) or more", o.memory)
	case o.report < 0:
		bad = fmt.Sprintf("WithReport: got %v, want 0 (no tables) or more", o.report)
	case o.lost > Continue:
		bad = fmt.Sprintf("WithLostWorkers: got %d, want Fail or Continue", o.lost)
	default:
		return o, nil
	}
	return nil, fault.New(fault.Misuse, "ps connect", c.WorldRank(c.Rank()), "%s", bad)
}

// minPart is the smallest size of a part in bytes. It is larger than every element.
const minPart = 64

// WithPart sets the size in bytes of a part of a dense tensor. The default is 4,096,000. A tensor has
// at most 1<<20 parts. All ranks must agree.
func WithPart(bytes int) Option { return func(o *options) { o.part = bytes } }

// WithCredit bounds the bytes of pushes that a worker has sent to one server and that the server has
// not acknowledged. A larger push goes alone. The default is 64 MiB. All ranks must agree.
//
// A server acknowledges a push when it has applied it, or holds it for a version that is not complete.
// So for each worker it holds at most the credit, and one push to each part of a synchronous tensor.
// The credit does not bound the indices of pulls, nor answers that a worker has not received yet.
//
// On a worker, pushes wait for credit. Those to tables, and those with Compress or TopK, are copied when
// they have it, so the credit bounds these copies, too. A worker that also serves copies pushes to its
// own server when an engine takes them.
//
// A second push to a synchronous tensor keeps its credit until the version of the first one is
// complete. So workers that push further versions before they pull must push all tensors in the same
// order.
func WithCredit(bytes int) Option { return func(o *options) { o.credit = bytes } }

// WithReplicas keeps r copies of each part on different servers, and on different hosts if there are
// enough hosts. If there are fewer than r servers, each server has a copy. The default is 1. All ranks
// must agree.
//
// A push is acknowledged when all copies have applied it. If servers are lost, the remaining ranks
// agree on who goes on, and copies on other servers replace those that are lost. Calls that are in
// progress wait meanwhile, and then succeed. Up to r-1 losses, of servers that have copies of a part,
// lose nothing that was acknowledged. After further losses, calls that need the part fail with
// fault.PeerLost, which names the lost parts. A rank that the others have given up, for example because
// its process was stopped for longer than comm.Parameters.Silence, acknowledges nothing any more. Its
// calls fail with fault.NoQuorum, or with another error that says why.
//
// With r > 1, a worker sends a push to a part of a synchronous tensor after the answers to its earlier
// pulls of that part. If a server is lost during a Client.Snapshot or Client.Restore, that call fails.
func WithReplicas(r int) Option { return func(o *options) { o.replicas = r } }

// WithEngines sets how many goroutines of a server fold and apply pushes. The default is the number
// of processors, at most 4.
func WithEngines(n int) Option { return func(o *options) { o.engines = n } }

// WithMemory bounds the bytes of values and of optimizer state on a server. A declaration or a push
// that needs more fails with fault.Exhausted. By default there is no bound.
//
// Each part of a table takes its share of a push as a whole or not at all. So some parts may have
// applied a push that has failed, and others have not. A synchronous tensor has lost a version then,
// and all later calls on the parts that have lost it fail with the same error, until Client.Restore
// takes the tensor back to a snapshot.
//
// A declaration that has failed stays known to the servers: one with the same properties tries again,
// and one with others fails with fault.Mismatch. Servers with enough memory keep the parts that they
// have made. A snapshot does not have the tensor.
func WithMemory(bytes int64) Option { return func(o *options) { o.memory = bytes } }

// WithLostWorkers sets what servers do when a worker is lost. All ranks must agree.
func WithLostWorkers(p LostWorkers) Option { return func(o *options) { o.lost = p } }

// WithOptimizers gives a server optimizers of the program, such as an optimizer.Func, in addition
// to the built-in ones. A declaration names an optimizer by the text that its String returns.
func WithOptimizers(list ...optimizer.Optimizer) Option {
	return func(o *options) { o.optimizers = append(o.optimizers, list...) }
}

// WithLogger sets the logger of warnings. The default logger prints on standard error.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithReport makes a server write a table to w at each interval: the keys, bytes and rates of each
// tensor, how many requests wait, and the lag between workers. The default is what TUTTI_REPORT_SERVERS
// says, on standard error, and no table without it. An interval of 0 turns tables off.
func WithReport(every time.Duration, w io.Writer) Option {
	if w == nil {
		w = io.Discard
	}
	return func(o *options) { o.report, o.reportTo = every, w }
}

// AlsoServe makes a worker serve, too. Run sets it as its Placement says.
func AlsoServe() Option { return func(o *options) { o.alsoServe = true } }

// A TensorOption is a property of a tensor. All workers must declare a tensor with the same
// properties.
type TensorOption func(*properties)

// properties are what the options of a declaration set.
type properties struct {
	spec      message.Spec
	op        comm.Op
	initial   Initializer
	optimizer optimizer.Optimizer
	rejectNaN bool

	residual     []byte // nil: memory of the client
	residualType tensor.DType
}

// Synchronous makes the n-th pushes of all workers version n. A pull waits for the version of this
// worker's last push. It is the default.
func Synchronous() TensorOption {
	return func(p *properties) { p.spec.Mode, p.spec.Staleness = part.Synchronous, 0 }
}

// Asynchronous applies each push when it arrives.
func Asynchronous() TensorOption {
	return func(p *properties) { p.spec.Mode, p.spec.Staleness = part.Asynchronous, 0 }
}

// Bounded applies each push when it arrives. The pull of a worker that has pushed n times waits
// until every worker has pushed at least n - staleness times.
func Bounded(staleness int) TensorOption {
	return func(p *properties) { p.spec.Mode, p.spec.Staleness = part.Bounded, staleness }
}

// Reduce sets how the pushes of a synchronous version are combined: by comm.Mean, the default, or by
// comm.Sum.
func Reduce(op comm.Op) TensorOption { return func(p *properties) { p.op = op } }

// Optimizer makes the servers treat pushes as gradients: o changes the values. It needs elements of
// type float32 or float64. Without an optimizer, the values of a synchronous dense tensor are the
// combined pushes of its last version, and other pushes are added to the values.
func Optimizer(o optimizer.Optimizer) TensorOption { return func(p *properties) { p.optimizer = o } }

// Priority orders the work on all tensors, on workers and servers: higher priorities go first. It is
// between -1<<30 and 1<<30. The default is 0.
func Priority(n int) TensorOption { return func(p *properties) { p.spec.Priority = n } }

// RejectNaN makes a push or a Set that contains a NaN fail with fault.Misuse. Nothing of it is sent.
// It needs floating-point elements. It lets infinities pass, and with them the values that Compress
// rounds to infinities.
func RejectNaN() TensorOption { return func(p *properties) { p.rejectNaN = true } }

// Compress sends values as 16-bit floats: tensor.F16 or tensor.BF16. It needs elements of type float32
// or float64. A worker adds what the rounding of its push to a dense tensor has lost to its next push
// (error feedback). It keeps as many elements as the tensor has for that. Set is not compressed.
// tensor.F16 has an infinity for values beyond 65504.
func Compress(d tensor.DType) TensorOption {
	return func(p *properties) { p.spec.Wire = d }
}

// TopK makes a push to a dense tensor send only the given share of the elements: in each part, those
// of the largest magnitude, and at least one. It needs elements of type float32 or float64. The other
// elements are added to the next push (error feedback), for which a worker keeps as many elements as
// the tensor has. Pulls and Set are not compressed.
func TopK(share float64) TensorOption { return func(p *properties) { p.spec.TopK = share } }

// Residual gives a dense tensor with Compress or TopK the memory for what its pushes have left out. It
// is as long as the tensor, and belongs to the client while a push is in flight. A program that adds
// up this tensor in another way, too, can then keep it for both. Only the client's first declaration
// of the tensor counts.
func Residual[T float32 | float64](buf []T) TensorOption {
	return func(p *properties) { p.residual, p.residualType = tensor.Bytes(buf), tensor.TypeOf[T]() }
}

// Rows bounds the indices of a table: they are 0 to n-1. Without it, every int64 that is not
// negative is allowed.
func Rows(n int64) TensorOption { return func(p *properties) { p.spec.Rows = n } }

// An Initializer computes initial values from the tensor's name, the row and the seed only.
type Initializer = storage.Initializer

// Zeros is 0 everywhere.
func Zeros() Initializer { return storage.Zeros() }

// Constant is x everywhere.
func Constant(x float64) Initializer { return storage.Constant(x) }

// Uniform draws from the uniform distribution between lo and hi.
func Uniform(lo, hi float64, seed uint64) Initializer { return storage.Uniform(lo, hi, seed) }

// Normal draws from the normal distribution with mean 0.
func Normal(std float64, seed uint64) Initializer { return storage.Normal(std, seed) }

// Initial sets the initial values of a tensor, or of each row of a table. The default is Zeros.
func Initial(i Initializer) TensorOption { return func(p *properties) { p.initial = i } }
