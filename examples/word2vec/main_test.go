package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/transport/wires"
)

// standardLibrary returns the text of the standard library, which it reads once.
var standardLibrary = sync.OnceValues(func() (*corpus, error) {
	source, err := goSource(context.Background())
	if err != nil {
		return nil, err
	}
	text, err := readComments(source, 0, 1)
	return newCorpus(text), err
})

// found trains in one process, without a report. It returns how many pairs are found for each seed.
func found(t *testing.T, text *corpus, o options, steps int) []int {
	t.Helper()
	expected, err := pairs(pairsFile)
	if err != nil {
		t.Fatal(err)
	}
	counts := make([]int, o.seeds)
	err = comm.Local(6, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, ps.Servers(o.servers), func(ctx context.Context, cl *ps.Client) error {
			for seed := range o.seeds {
				t, err := newTraining(ctx, cl, text, uint64(seed+1), o)
				if err != nil {
					return err
				}
				shown := newProgress(false, nil, io.Discard)
				if err := t.train(ctx, o.epochs, shown); err != nil {
					return err
				}
				words, err := t.space(ctx)
				if err != nil {
					return err
				}
				if t.team.Rank() == 0 {
					counts[seed] = len(words.found(expected))
					if len(t.losses) < steps {
						return fmt.Errorf("steps: got %d, want at least %d", len(t.losses), steps)
					}
				}
			}
			return nil
		}, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// All pairs are well known in Go 1.26. Another release may use some words less often.
func TestPairsAreWellKnownWords(t *testing.T) {
	text, err := standardLibrary()
	if err != nil {
		t.Fatal(err)
	}
	all, err := pairs(pairsFile)
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for _, pair := range all {
		a, okA := text.number[pair[0]]
		b, okB := text.number[pair[1]]
		if okA && okB && min(text.counts[a], text.counts[b]) >= wellKnown {
			known++
		} else {
			t.Logf("%s occur less than %d times", pair, wellKnown)
		}
	}
	if known < 16 {
		t.Errorf("pairs of well-known words: got %d, want at least 16 of %d", known, len(all))
	}
}

func TestCheckFailsOnUntrainedWords(t *testing.T) {
	text, err := standardLibrary()
	if err != nil {
		t.Fatal(err)
	}
	o := defaults
	o.epochs, o.seeds = 0, 3
	if counts := found(t, text, o, 0); slices.Max(counts) > 2 {
		t.Errorf("pairs found with three seeds: got %d, want at most 2", counts)
	}
}

// The training is short. TestShortTrainingFindsPairs finds pairs in as many steps.
func TestCheckFailsIfPushesAreDiscarded(t *testing.T) {
	text, err := standardLibrary()
	if err != nil {
		t.Fatal(err)
	}
	o := defaults
	o.epochs, o.seeds = 1, 3
	o.push = func(table *ps.Table[float32], _ []int64, _ []float32) *ps.Handle { return table.IPush(nil, nil) }
	if counts := found(t, third(text), o, 100); slices.Max(counts) > 2 {
		t.Errorf("pairs found with three seeds: got %d, want at most 2", counts)
	}
}

func TestShortTrainingFindsPairs(t *testing.T) {
	text, err := standardLibrary()
	if err != nil {
		t.Fatal(err)
	}
	o := defaults
	o.epochs = 1
	if counts := found(t, third(text), o, 100); counts[0] < 6 {
		t.Errorf("pairs found after a short training: got %d, want at least 6", counts[0])
	}
}

// third returns a corpus with every third comment, for a short training.
func third(text *corpus) *corpus {
	short := *text
	short.comments = nil
	for i := 0; i < len(text.comments); i += 3 {
		short.comments = append(short.comments, text.comments[i])
	}
	return &short
}

// sourceOf writes a folder of Go source with random comments.
func sourceOf(t *testing.T) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 7))
	var text bytes.Buffer
	text.WriteString("package p\n")
	for i := range 400 {
		text.WriteString("// ")
		for range 20 {
			fmt.Fprintf(&text, "w%d ", rng.IntN(40)+rng.IntN(40))
		}
		fmt.Fprintf(&text, "\nvar v%d int\n", i)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.go"), text.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "q.go"), []byte("package p\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// lines runs the example and returns the lines of worker 0 without the rates.
func lines(t *testing.T, o options, ranks int, opts ...comm.Option) ([]string, error) {
	t.Helper()
	var out bytes.Buffer
	err := comm.Local(ranks, func(ctx context.Context, c *comm.Comm) error {
		return run(ctx, c, o, &out, io.Discard)
	}, opts...)
	var all []string
	for line := range strings.Lines(out.String()) {
		line, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ", servers: ")
		if loss, _, ok := strings.Cut(line, " words/s"); ok {
			line = loss[:strings.LastIndex(loss, ",")]
		}
		all = append(all, line)
	}
	return all, err
}

func TestEveryWireAndNumberOfServersLearnsTheSame(t *testing.T) {
	o := defaults
	o.source, o.epochs = sourceOf(t), 2
	var want []string
	for _, tc := range []struct {
		wire    string
		servers int
	}{{"memory", 1}, {"memory", 3}, {"tcp", 2}, {"grpc", 1}} {
		o.servers = tc.servers
		got, err := lines(t, o, 2+tc.servers, comm.WithTransport(wires.All()...), comm.WithTransportName(tc.wire))
		if err == nil || !strings.Contains(err.Error(), "seed 1: pairs among each other's 10 nearest words: got 0, want at least 12") {
			t.Fatalf("%s, %d servers: got %v, want the check to fail, because the text lacks its words", tc.wire, tc.servers, err)
		}
		got = got[:min(3, len(got))] // any worker may be the first to fail, so worker 0 may print no more
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) || len(got) < 3 {
			t.Errorf("%s, %d servers: got %q, want 3 lines equal to %q", tc.wire, tc.servers, got, want)
		}
	}
}

func TestProjectionsDifferWithoutTheAllReduce(t *testing.T) {
	o := defaults
	o.source, o.epochs, o.servers = sourceOf(t), 1, 1
	o.average = func(context.Context, *comm.Comm, []float32) error { return nil }
	if _, err := lines(t, o, 3); err == nil || !strings.Contains(err.Error(), "projection of worker") {
		t.Errorf("got %v, want an error about the projections", err)
	}
}

func TestOneUnreadableFolderEndsAllWorkers(t *testing.T) {
	o := defaults
	o.source = filepath.Join(t.TempDir(), "missing")
	if _, err := lines(t, o, 4); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want the missing folder", err)
	}
}

func TestTooFewRanksGetAnErrorThatNamesTheRemedy(t *testing.T) {
	err := job(t.Context(), []string{"-local", "2"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "-np 6") {
		t.Errorf("got %v, want to be told how to start enough", err)
	}
}

func TestParseFlags(t *testing.T) {
	o, err := parseFlags([]string{"-seeds", "3", "-epochs", "2", "-servers", "1", "-src", "s", "-bar=false"}, io.Discard)
	if err != nil || o.seeds != 3 || o.epochs != 2 || o.servers != 1 || o.source != "s" || o.bar {
		t.Errorf("got %+v, %v", o, err)
	}
	for _, args := range [][]string{{"-seeds", "0"}, {"-epochs", "0"}, {"-servers", "0"}, {"more"}, {"-unknown"}} {
		if _, err := parseFlags(args, io.Discard); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}

func TestProgressShowsABarOrALine(t *testing.T) {
	var screen, out bytes.Buffer
	for _, bar := range []bool{true, false} {
		p := newProgress(bar, &screen, &out)
		p.start("seed 1", 20)
		p.step(10, 3)
		p.step(10, 2)
		p.end()
	}
	if !strings.Contains(screen.String(), "seed 1: loss 2.500") || !strings.Contains(screen.String(), "words/s") {
		t.Errorf("bar: got %q, want the mean loss and the rate", &screen)
	}
	if !strings.HasPrefix(out.String(), "seed 1: loss 2.500, ") || !strings.HasSuffix(out.String(), " words/s\n") {
		t.Errorf("line: got %q, want the mean loss and the rate", &out)
	}
}
