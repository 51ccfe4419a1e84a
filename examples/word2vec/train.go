package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
)

// batchSize is the number of words of the text in the batch of one worker.
const batchSize = 512

// The optimizers: ofRows for the tables, on the servers, and ofProjection for the projection, on
// every worker.
var (
	ofRows       = optimizer.Adagrad{Rate: 0.2}
	ofProjection = optimizer.Adagrad{Rate: 0.01}
)

// work runs a worker. All workers make the same check. Worker 0 prints and draws.
func work(ctx context.Context, cl *ps.Client, o options, out, screen io.Writer) error {
	team := cl.Workers()
	if team.Rank() > 0 {
		out, o.out, o.bar = io.Discard, "", false
	}
	text, err := load(ctx, team, o.source)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d words of text, %d different ones, workers: %d, servers: %d\n", text.total, len(text.words), team.Size(), o.servers)
	expected, err := pairs(pairsFile)
	if err != nil {
		return err
	}
	var losses [][]float64
	var words *space
	for seed := range o.seeds {
		t, err := newTraining(ctx, cl, text, uint64(seed+1), o)
		if err != nil {
			return err
		}
		if err := t.train(ctx, o.epochs, newProgress(o.bar, screen, out)); err != nil {
			return err
		}
		losses = append(losses, t.losses)
		if words, err = t.space(ctx); err != nil {
			return err
		}
		found := words.found(expected)
		fmt.Fprintf(out, "seed %d: %d of %d pairs are among each other's %d nearest words (at least %d)\n", t.seed, len(found), len(expected), nearest, wantPairs)
		if len(found) < wantPairs {
			return fmt.Errorf("seed %d: pairs among each other's %d nearest words: got %d, want at least %d", t.seed, nearest, len(found), wantPairs)
		}
	}
	for _, word := range []string{"reader", "goroutine", "int32", "certificate", "linux", "first"} {
		fmt.Fprintf(out, "near %s: %s\n", word, strings.Join(words.near(word), " "))
	}
	if o.out == "" {
		return nil
	}
	paths, err := drawAll(o.out, losses, words, expected)
	if err == nil {
		fmt.Fprintf(out, "pictures: %s\n", strings.Join(paths, ", "))
	}
	return err
}

// load reads the text. Each worker reads a share of the files, and all workers get the same text.
func load(ctx context.Context, team *comm.Comm, source string) (*corpus, error) {
	if source == "" {
		var err error
		if source, err = goSource(ctx); err != nil {
			return nil, err
		}
	}
	mine, err := readComments(source, team.Rank(), team.Size())
	if err != nil {
		return nil, err
	}
	counts := make([]int, team.Size())
	if err := comm.AllGather(ctx, team, counts, comm.From([]int{len(mine)})); err != nil {
		return nil, err
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	all := make([]byte, total)
	if err := comm.AllGather(ctx, team, all, comm.From(mine), comm.Counts(counts)); err != nil {
		return nil, err
	}
	return newCorpus(all), nil
}

// A training is one worker's part of the training with one seed.
type training struct {
	options
	text *corpus
	team *comm.Comm
	seed uint64

	centers, contexts *ps.Table[float32] // the tables on the servers
	projection        []float32          // equal on every worker
	squares           []float32          // the state of the projection's optimizer
	steps             int64
	losses            []float64 // for each step, the mean loss per pair of the text

	words sampler
	rng   *rand.Rand // differs from worker to worker
	batch batch
	rows  struct{ centers, contexts []float32 } // the vectors of the rows that the batch lists
}

// newTraining declares the tables. Both are synchronous, so a run gives the same bits each time.
func newTraining(ctx context.Context, cl *ps.Client, text *corpus, seed uint64, o options) (*training, error) {
	t := &training{
		options:    o,
		text:       text,
		team:       cl.Workers(),
		seed:       seed,
		projection: make([]float32, dim*dim),
		squares:    make([]float32, dim*dim),
		words:      newSampler(text),
	}
	t.rng = rand.New(rand.NewPCG(seed, 1+uint64(t.team.Rank())))
	for i := range dim {
		t.projection[i*dim+i] = 1
	}
	common := []ps.TensorOption{ps.Rows(int64(len(text.words))), ps.Reduce(comm.Sum), ps.Optimizer(ofRows)}
	var err error
	t.centers, err = ps.DeclareTable[float32](ctx, cl, fmt.Sprintf("centers/%d", seed), dim,
		append(common, ps.Initial(ps.Uniform(-0.5/dim, 0.5/dim, seed)))...)
	if err != nil {
		return nil, err
	}
	t.contexts, err = ps.DeclareTable[float32](ctx, cl, fmt.Sprintf("contexts/%d", seed), dim, common...)
	return t, err
}

// train walks through the text. All workers draw the same order of comments. In each step every
// worker gets the next batchSize words, so the workers make the same number of steps.
func (t *training) train(ctx context.Context, epochs int, shown *progress) error {
	for epoch := range epochs {
		text := t.text.epochText(rand.New(rand.NewPCG(t.seed, 1<<32+uint64(epoch))))
		together := batchSize * t.team.Size()
		shown.start(fmt.Sprintf("seed %d, epoch %d of %d", t.seed, epoch+1, epochs), len(text)/together*together)
		for ; len(text) >= together; text = text[together:] {
			first := t.team.Rank() * batchSize
			t.batch.fill(text, first, first+batchSize, t.words, t.rng)
			loss, err := t.step(ctx)
			if err != nil {
				return err
			}
			t.losses = append(t.losses, loss)
			shown.step(together, loss)
		}
		shown.end()
	}
	return t.identical(ctx)
}

// step learns from the batch and returns the mean loss over all workers' batches.
func (t *training) step(ctx context.Context) (float64, error) {
	b := &t.batch
	t.rows.centers = resize(t.rows.centers, len(b.centers.words)*dim)
	t.rows.contexts = resize(t.rows.contexts, len(b.contexts.words)*dim)
	err := ps.WaitAll(ctx,
		t.centers.IPull(b.centers.words, t.rows.centers),
		t.contexts.IPull(b.contexts.words, t.rows.contexts))
	if err != nil {
		return 0, err
	}
	g := b.gradient(t.projection, t.rows.centers, t.rows.contexts)

	// The servers add up the pushes of all workers, and apply the sums to the rows. Meanwhile the
	// workers average the gradient of the projection. The loss is averaged in the same message.
	pushes := []*ps.Handle{
		t.push(t.centers, b.centers.words, g.centers),
		t.push(t.contexts, b.contexts.words, g.contexts),
	}
	dense := append(g.projection, float32(g.loss))
	if err := t.average(ctx, t.team, dense); err != nil {
		return 0, err
	}
	t.steps++
	ofProjection.Update32(t.projection, dense[:dim*dim], [][]float32{t.squares}, t.steps)
	return float64(dense[dim*dim]), ps.WaitAll(ctx, pushes...)
}

func resize(v []float32, n int) []float32 {
	if cap(v) < n {
		return make([]float32, n)
	}
	return v[:n]
}

// identical fails unless all workers hold the same bits of the projection.
func (t *training) identical(ctx context.Context) error {
	bits, err := binary.Append(nil, binary.LittleEndian, t.projection)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(bits)
	all := make([]byte, t.team.Size()*len(digest))
	if err := comm.AllGather(ctx, t.team, all, comm.From(digest[:])); err != nil {
		return err
	}
	for worker := range t.team.Size() {
		if !bytes.Equal(all[worker*len(digest):(worker+1)*len(digest)], digest[:]) {
			return fmt.Errorf("projection of worker %d: got other bits than on worker %d, want equal ones", worker, t.team.Rank())
		}
	}
	return nil
}

// space pulls the rows of the words that occur often enough to be compared, and projects them.
func (t *training) space(ctx context.Context) (*space, error) {
	n := t.text.frequent(wellKnown)
	words := make([]int64, n)
	for i := range words {
		words[i] = int64(i)
	}
	rows, projected := make([]float32, n*dim), make([]float32, n*dim)
	if err := t.centers.Pull(ctx, words, rows); err != nil {
		return nil, err
	}
	blas32.Gemm(blas.NoTrans, blas.Trans, 1, matrix(n, rows), matrix(dim, t.projection), 0, matrix(n, projected))
	return newSpace(t.text, projected), nil
}
