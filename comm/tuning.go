package comm

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/collective/choose"
	"github.com/tutti-go/tutti/fault"
)

// maxModel bounds the size in bytes of the model that rank 0 sends. The receiver checks the size
// before it allocates memory.
const maxModel = choose.MaxLinks * 256

// broadcastTable sends rank 0's table of algorithms to all ranks: the rules of a tuning file, rank
// 0's defaults, and the algorithms that its options or environment force. All ranks must choose the
// same algorithm for a call, so no other rank reads its own file. The message includes the tuning
// file's model of the machine's speed, for Explain. An error of rank 0 ends Init on all ranks.
func (rt *rankRuntime) broadcastTable(ctx context.Context, c *Comm) (*collective.Table, error) {
	var rules, speed []byte
	if rt.rank == 0 {
		tuning, err := readTuning(rt.opt.params.Tuning)
		if err != nil {
			return nil, err
		}
		t, err := collective.NewTable(tuning.Rules, collective.DefaultRules())
		if err != nil {
			return nil, err
		}
		if err := t.Force(rt.opt.algorithm); err != nil {
			return nil, c.withOp("init: TUTTI_ALGORITHM or WithAlgorithm", err)
		}
		rules = t.AppendEncoded(nil)
		speed = (&choose.TuningFile{Model: tuning.Model}).Encode()
	}
	rules, err := broadcastBytes(ctx, c, "tuning rules", rules, collective.MaxEncodedTable)
	if err != nil {
		return nil, err
	}
	if speed, err = broadcastBytes(ctx, c, "tuning model", speed, maxModel); err != nil {
		return nil, err
	}
	tuning, err := choose.Decode("tuning model from rank 0", speed)
	if err != nil {
		return nil, err
	}
	rt.model = tuning.Model
	return collective.ParseTable(rules)
}

// broadcastBytes sends rank 0's bytes to all ranks, their length first. It refuses a length above
// most before it allocates memory, because a rank that runs another program may send any length.
// The parameter content names the bytes in that error.
func broadcastBytes(ctx context.Context, c *Comm, content string, b []byte, most int) ([]byte, error) {
	length := []int64{int64(len(b))}
	if err := Broadcast(ctx, c, length, 0); err != nil {
		return nil, err
	}
	if length[0] < 0 || length[0] > int64(most) {
		return nil, fault.New(fault.Mismatch, "init", c.rt.rank, "%s from rank 0: got %d bytes, want 0 to %d; run the same program on all ranks", content, length[0], most)
	}
	if c.Rank() != 0 {
		b = make([]byte, length[0])
	}
	return b, Broadcast(ctx, c, b, 0)
}

// readTuning reads a tuning file. Without a file it returns no rules and the default model. The
// size of the file is bounded by choose.MaxFile. A file with rules but no model gets the default
// model.
func readTuning(file string) (*choose.TuningFile, error) {
	if file == "" {
		return &choose.TuningFile{Model: choose.DefaultModel()}, nil
	}
	unreadable := func(err error) error {
		return fault.New(fault.Misuse, "init", 0, "tuning file, read by rank 0 on its host: %w; correct TUTTI_TUNING or Parameters.Tuning, or leave it out", err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, unreadable(err)
	}
	if !info.Mode().IsRegular() { // opening a pipe may block without a limit
		return nil, unreadable(fmt.Errorf("%s: got a file of mode %v, want a regular file", file, info.Mode()))
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, unreadable(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, choose.MaxFile+1))
	if err != nil {
		return nil, unreadable(err)
	}
	tuning, err := choose.Decode(file, text)
	if err == nil && len(tuning.Model.Links) == 0 {
		tuning.Model = choose.DefaultModel()
	}
	return tuning, err
}
