package bootstrap

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
)

// An exchange gives rank 0's value to all ranks, through the Entries of a job. These are the texts:
//
//	rank      text                              meaning
//	not 0     1 NONCE -                         this run of the rank waits for rank 0's value
//	0         1 TOKEN VALUE NONCE [NONCE ...]   the value, for these runs of ranks 1, 2, ...
//	not 0     1 NONCE TOKEN                     the rank has read the value
//
// An earlier job that failed may have left texts. So a rank accepts a value only if the text
// contains the rank's own nonce, which is random. Rank 0 writes its text again when a nonce has
// changed. It is finished when all ranks have written its token, which is random, too. It then
// removes all texts.
type exchange struct {
	where      string // the job and its store, for errors
	rank, size int
	value      string   // what rank 0 gives to all
	own        string   // the nonce, or rank 0's token
	written    string   // the text that this rank has written last, or ""
	readers    []string // on rank 0: for each rank, the nonce if the rank has read the value, or ""
}

// newExchange returns a rank's part in an exchange. The value is rank 0's, and "" on other ranks.
func newExchange(where string, rank, size int, value string) *exchange {
	return &exchange{where: where, rank: rank, size: size, value: value, own: rand.Text(), readers: make([]string, size)}
}

// run returns rank 0's value. On rank 0 it returns when all ranks have read the value. On another
// rank it returns when that rank has read the value; rank 0 writes the value when all ranks take
// part. The value has neither spaces nor newlines. After the end of ctx the error names the ranks
// that did not come.
func (x *exchange) run(ctx context.Context, e Entries) (string, error) {
	if x.rank == 0 && (x.value == "" || strings.ContainsAny(x.value, " \n")) {
		return "", fmt.Errorf("value %q: want a value without spaces and newlines", x.value)
	}
	for waiting := ""; ; {
		texts, err := e.Next(ctx)
		var now action
		if err == nil {
			if now, err = x.step(texts); err != nil {
				return "", err
			}
			waiting = now.waiting
		}
		if err == nil && now.write != "" {
			err = e.Write(ctx, now.write)
		}
		switch {
		case err != nil && ctx.Err() != nil && waiting != "":
			return "", fmt.Errorf("%s: %w", waiting, ctx.Err())
		case err != nil:
			return "", err
		case now.done != "":
			if x.rank == 0 {
				e.Remove(ctx, upTo(x.size)...) // a text that cannot be removed does not mislead the next job
			}
			return now.done, nil
		}
	}
}

// withdraw removes this rank's text after a failure, so that it does not mislead users.
func (x *exchange) withdraw(ctx context.Context, e Entries) {
	if x.written != "" {
		e.Remove(ctx, x.rank)
	}
}

// An action is what a rank must do after texts have changed. A field that is "" requires nothing.
type action struct {
	write   string // the new text of this rank
	done    string // rank 0's value: the exchange is over after the write
	waiting string // what this rank waits for, while done is ""; for errors
}

// step decides what this rank does now. The texts are indexed by rank. An error ends the exchange.
func (x *exchange) step(texts []string) (action, error) {
	own := fields(texts[x.rank])
	if x.written != "" && own != nil && own[1] != x.own {
		x.written = "" // another process has replaced this rank's text
		return action{}, fmt.Errorf("rank %d of %s: another process has replaced its entry: give each job in the store another name (TUTTI_JOB), and each process another rank", x.rank, x.where)
	}
	var now action
	if x.rank == 0 {
		now = x.lead(texts)
	} else {
		now = x.follow(fields(texts[0]))
	}
	switch {
	case now.write == "":
	case now.write == x.written && own != nil:
		now.write = "" // the store holds this text already
	default:
		x.written = now.write
	}
	return now, nil
}

// lead returns what rank 0 does. Rank 0 is done once all ranks have read the value.
func (x *exchange) lead(texts []string) action {
	var nonces, absent, unread []string
	for r := 1; r < x.size; r++ {
		f := fields(texts[r])
		switch {
		case len(f) == 3 && f[2] == x.own:
			x.readers[r] = f[1]
		case len(f) == 3:
			x.readers[r] = "" // the rank was started again
			unread = append(unread, strconv.Itoa(r))
		case x.readers[r] == "":
			absent = append(absent, strconv.Itoa(r))
			continue
		default: // the rank has read the value, and its text was removed since
			nonces = append(nonces, x.readers[r])
			continue
		}
		nonces = append(nonces, f[1])
	}
	if len(absent) > 0 {
		return action{waiting: fmt.Sprintf("no entry of %s in %s", listRanks(absent), x.where)}
	}
	now := action{write: strings.Join(append([]string{version, x.own, x.value}, nonces...), " ")}
	if len(unread) > 0 {
		now.waiting = fmt.Sprintf("rank 0's entry in %s is not read by %s, whose entries may be of an earlier job", x.where, listRanks(unread))
	} else {
		now.done = x.value
	}
	return now
}

// follow returns what a rank other than 0 does, given the fields of rank 0's text. The rank is done
// once rank 0 has written the value for this run of the rank.
func (x *exchange) follow(root []string) action {
	write := func(token string) string { return strings.Join([]string{version, x.own, token}, " ") }
	switch {
	case root == nil:
		return action{write: write("-"), waiting: "no entry of rank 0 in " + x.where + ": rank 0 or another rank has not come"}
	case len(root) != 2+x.size || root[2+x.rank] != x.own:
		return action{write: write("-"), waiting: "rank 0's entry in " + x.where + " is not for this run: rank 0 or another rank has not come"}
	}
	return action{write: write(root[1]), done: root[2]}
}

// version is the first field of every text. Texts of another version are ignored.
const version = "1"

// fields returns the fields of a text, or nil if it is "", or of another version or form.
func fields(text string) []string {
	f := strings.Split(text, " ")
	if f[0] != version || len(f) < 3 {
		return nil
	}
	return f
}

// listRanks lists ranks for an error. It names the first few.
func listRanks(ranks []string) string {
	word, more := "ranks ", ""
	if len(ranks) == 1 {
		word = "rank "
	}
	if len(ranks) > maxNamed {
		ranks, more = ranks[:maxNamed], fmt.Sprintf(" and %d more", len(ranks)-maxNamed)
	}
	return word + strings.Join(ranks, ", ") + more
}

// maxNamed is the maximum number of ranks that an error names.
const maxNamed = 8
