package elastic

import (
	"math/rand/v2"

	"github.com/tutti-go/tutti/comm"
)

// A Sampler divides the indexes of a data set among the ranks, batch by batch, in an order that
// differs from epoch to epoch. Like Horovod's ElasticSampler, it is a State. After a change of the
// members, an epoch continues where it was, and the remaining indexes are divided among the new
// members.
//
// A batch consists of the indexes of all ranks together. Batches depend on the seed and not on the
// number of ranks, so a training uses the same batches whether or not its members change.
//
// A Sampler may be used by one goroutine at a time.
type Sampler struct {
	State       // holds the fields epoch and done
	n           int
	seed        uint64
	epoch, done int // the current epoch, and how many of its indexes have been used

	order   []int // the order of the indexes in one epoch; nil before the first Batch
	ordered int   // the epoch to which order belongs
}

// NewSampler returns a Sampler of the indexes 0 to n-1 at the start of epoch 0. All ranks must pass
// equal arguments.
func NewSampler(n int, seed uint64) *Sampler {
	s := &Sampler{n: n, seed: seed}
	s.State = Values(&s.epoch, &s.done)
	return s
}

// Epoch returns the number of completed epochs.
func (s *Sampler) Epoch() int { return s.epoch }

// Batch returns the indexes of the calling rank in the next batch, and the number of indexes of all
// ranks in that batch. The batch has the given size; the last one of an epoch may be smaller. The
// ranks' parts differ by at most one index, and may be empty. The caller must not change the
// returned slice. Batch does not advance: without Advance, it returns the same batch again.
func (s *Sampler) Batch(c *comm.Comm, size int) (mine []int, total int) {
	if s.order == nil || s.ordered != s.epoch {
		s.order = rand.New(rand.NewPCG(s.seed, uint64(s.epoch))).Perm(s.n)
		s.ordered = s.epoch
	}
	batch := s.order[s.done:min(s.done+max(size, 1), s.n)]
	return batch[c.Rank()*len(batch)/c.Size() : (c.Rank()+1)*len(batch)/c.Size()], len(batch)
}

// Advance marks the next total indexes as used. When all indexes are used, the next epoch begins.
func (s *Sampler) Advance(total int) {
	if s.done += total; s.done >= s.n {
		s.epoch, s.done = s.epoch+1, 0
	}
}
