package pmix

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/internal/test/leak"
)

// value is the value that rank 0 published when the transcripts were recorded.
const value = "1,00112233,,45678,10.0.0.1"

// A transcript is what one process and a real server have said to each other.
type transcript struct {
	lookup  Lookup
	layout  string
	err     string // the error of Exchange, or ""
	entries []entry
}

// An entry is one message, with its header.
type entry struct {
	toServer bool
	bytes    []byte
}

// readTranscript parses a file of testdata/transcripts. The user and the group of the process that
// was recorded are replaced by those of this process.
func readTranscript(t testing.TB, path string) (tr transcript) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	env := make(map[string]string)
	tr.lookup = func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "#":
		case "layout":
			tr.layout = rest
		case "error":
			tr.err = rest
		case ">", "<":
			b, err := strconv.Unquote(rest)
			if err != nil {
				t.Fatalf("%s: %v: %s", path, err, line)
			}
			tr.entries = append(tr.entries, entry{word == ">", []byte(b)})
		default:
			name, v, _ := strings.Cut(line, "=")
			env[name] = v
		}
	}
	proof := tr.entries[0].bytes[16+len("native\x00")+4:]
	binary.NativeEndian.PutUint32(proof, uint32(os.Geteuid()))
	binary.NativeEndian.PutUint32(proof[4:], uint32(os.Getegid()))
	return tr
}

// serve plays the server's part of the first n messages, and compares the client's part.
func (tr transcript) serve(conn net.Conn, n int) error {
	for i, e := range tr.entries[:n] {
		if !e.toServer {
			if _, err := conn.Write(e.bytes); err != nil {
				return err
			}
			continue
		}
		got := make([]byte, len(e.bytes))
		if _, err := io.ReadFull(conn, got); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if !bytes.Equal(got, e.bytes) {
			return fmt.Errorf("message %d: got %q, want %q", i, got, e.bytes)
		}
	}
	return nil
}

// publish is what a program does with a connection to a server. It returns the layout, as a
// transcript has it.
func (tr transcript) publish(ctx context.Context, conn net.Conn) (layout string, err error) {
	e, err := readEnvironment(tr.lookup)
	if err != nil {
		return "", err
	}
	c, err := open(ctx, e, conn)
	if err != nil {
		return "", err
	}
	return exchange(ctx, c)
}

// exchange publishes the value of the transcripts, and closes the connection.
func exchange(ctx context.Context, c *ServerConn) (layout string, err error) {
	rank, size, localRank, localSize := c.Layout()
	layout = fmt.Sprint(rank, size, localRank, localSize)
	own := ""
	if rank == 0 {
		own = value
	}
	got, err := c.Exchange(ctx, own)
	if err == nil && got != value {
		err = fmt.Errorf("Exchange: got %q, want %q", got, value)
	}
	return layout, errors.Join(err, c.Close())
}

func transcripts(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/transcripts/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("got %d transcripts, %v", len(paths), err)
	}
	return paths
}

func TestTheClientSpeaksAsRealServersUnderstand(t *testing.T) {
	leak.Check(t)
	for _, path := range transcripts(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			tr := readTranscript(t, path)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() {
				conn, err := l.Accept()
				l.Close()
				if err == nil {
					err = tr.serve(conn, len(tr.entries))
					conn.Close()
				}
				served <- err
			}()
			c, err := Dial(t.Context(), func(name string) (string, bool) {
				v, ok := tr.lookup(name)
				return strings.Replace(v, "127.0.0.1:4000", l.Addr().String(), 1), ok
			})
			if err != nil {
				t.Fatal(err)
			}
			layout, err := exchange(t.Context(), c)
			if layout != tr.layout {
				t.Errorf("layout: got %q, want %q", layout, tr.layout)
			}
			if (err != nil) != (tr.err != "") || err != nil && !strings.Contains(err.Error(), tr.err) {
				t.Errorf("got error %v, want %q", err, tr.err)
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}

const ompi4 = "testdata/transcripts/open-mpi-4.1.4-rank0.txt"

// The steps of the transcript ompi4, and for each step the number of messages before the server's
// answer.
var steps = []struct {
	name   string
	before int
}{
	{"handshake", 1}, {"get pmix.job.size", 3}, {"get pmix.lpeers", 5}, {"commit", 7}, {"fence", 9}, {"get tutti.root", 11}, {"finalize", 13},
}

func TestAServerThatDiesIsNamedWithTheStep(t *testing.T) {
	for _, s := range steps {
		for name, part := range map[string]int{"before its answer": 0, "within its answer": 5} {
			t.Run(s.name+" "+name, func(t *testing.T) {
				leak.Check(t)
				tr := readTranscript(t, ompi4)
				ours, theirs := net.Pipe()
				go func() {
					defer theirs.Close()
					if err := tr.serve(theirs, s.before); err != nil {
						t.Error(err)
					}
					theirs.Write(tr.entries[s.before].bytes[:part])
				}()
				_, err := tr.publish(t.Context(), ours)
				want := "PMIx server 127.0.0.1:4000 (v41): " + s.name + ": the server has closed the connection"
				if err == nil || err.Error() != want {
					t.Errorf("got %v, want %s", err, want)
				}
			})
		}
	}
}

func TestAServerThatStallsIsGivenUp(t *testing.T) {
	for _, s := range steps {
		for name, part := range map[string]int{"before its answer": 0, "within its answer": 5} {
			t.Run(s.name+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tr := readTranscript(t, ompi4)
					ours, theirs := net.Pipe()
					defer theirs.Close()
					served := make(chan struct{})
					go func() {
						defer close(served)
						if err := tr.serve(theirs, s.before); err != nil {
							t.Error(err)
						}
						theirs.Write(tr.entries[s.before].bytes[:part])
					}()
					const wait = time.Minute // bounds only the wait for other ranks
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					defer cancel()
					began := time.Now()
					_, err := tr.publish(ctx, ours)
					limit, text := answerLimit, "got no answer within 30s"
					switch s.name {
					case "fence":
						limit, text = wait, context.DeadlineExceeded.Error()
					case "finalize":
						limit, text = finalizeLimit, "got no answer within 2s"
					}
					if err == nil || !strings.Contains(err.Error(), "(v41): "+s.name+": "+text) {
						t.Errorf("got %v, want %s: %s", err, s.name, text)
					}
					if d := time.Since(began); d != limit {
						t.Errorf("ended after %v, want %v", d, limit)
					}
					ours.Close()
					<-served
				})
			})
		}
	}
}

func TestAServerThatSendsOnlyNoticesIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := readTranscript(t, ompi4)
		ours, theirs := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			if err := tr.serve(theirs, 3); err != nil {
				t.Error(err)
			}
			notice := answer(0, []byte("event"))
			for tick := time.Tick(time.Second); ; <-tick {
				if _, err := theirs.Write(notice); err != nil {
					return
				}
			}
		}()
		_, err := tr.publish(t.Context(), ours)
		if err == nil || !strings.Contains(err.Error(), "got no answer within 30s") {
			t.Errorf("got %v, want the limit", err)
		}
		theirs.Close()
		<-served
	})
}

func TestExchangeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := readTranscript(t, ompi4)
		ours, theirs := net.Pipe()
		defer theirs.Close()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if err := tr.serve(theirs, 9); err != nil { // the answer to fence does not come
				t.Error(err)
			}
			cancel()
		}()
		_, err := tr.publish(ctx, ours)
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "fence") {
			t.Errorf("got %v, want fence and %v", err, context.Canceled)
		}
	})
}

// answer returns an answer of a server that speaks v41.
func answer(tag uint32, body []byte) []byte {
	b := make([]byte, 16, 16+len(body))
	binary.BigEndian.PutUint32(b[4:], tag)
	binary.BigEndian.PutUint32(b[8:], uint32(len(body)))
	return append(b, body...)
}

// pairs returns the body of an answer to get, with one pair.
func pairs(nspace string, rank uint32, key string, value func(*packer)) []byte {
	blob := packer{varints: true}
	blob.item().string(nspace)
	blob.uint32(rank)
	blob.item().string(key)
	value(&blob)
	p := packer{varints: true}
	p.item().int32(0)
	p.item().size(len(blob.b))
	return append(p.b, blob.b...)
}

func text(s string) func(*packer) {
	return func(p *packer) { p.uint16(typeString); p.string(s) }
}

func number(n uint32) func(*packer) {
	return func(p *packer) { p.uint16(typeUint32); p.uint32(n) }
}

func TestAServerThatLiesIsRefused(t *testing.T) {
	const job = "1891631105" // of the transcript
	for name, c := range map[string]struct {
		before int // messages of the transcript before the lie
		lie    []byte
		want   string
	}{
		"handshake refused":   {1, []byte{0xff, 0xff, 0xff, 0xf4}, "handshake: got status -12 (the server does not accept this user)"},
		"an endless answer":   {3, answer(101, make([]byte, maxAnswer+1))[:16], "got an answer of 1048577 bytes, want at most 1048576"},
		"another rank's size": {3, answer(101, pairs(job, 1, keySize, number(4))), "got <nil>"},
		"another job's size":  {3, answer(101, pairs("2", allRanks, keySize, number(4))), "got <nil>"},
		"no ranks":            {3, answer(101, pairs(job, allRanks, keySize, number(0))), "got uint32 0"},
		"too many ranks":      {3, answer(101, pairs(job, allRanks, keySize, number(maxRanks+1))), "got uint32 65537"},
		"a size in words":     {3, answer(101, pairs(job, allRanks, keySize, text("four"))), "got string four"},
		"an unknown type":     {3, answer(101, pairs(job, allRanks, keySize, func(p *packer) { p.uint16(40) })), "got a value of PMIx type 40, want 3 or 14"},
		"half a status":       {3, answer(101, []byte{2}), "the answer ends within a value"},
		"half a blob":         {3, answer(101, pairs(job, allRanks, keySize, number(4))[:20]), "the answer ends within a value"},
		"a string below zero": {3, answer(101, []byte{2, 0, 2, 3, 2, 1, 'x'}), "got a string of -1 bytes"},
		"commit refused":      {7, answer(103, []byte{2, 51}), "commit: got status -26"},
		"no value":            {11, answer(105, []byte{2, 0}), "get rank 0's value: got <nil>"},
		"an empty value":      {11, answer(105, pairs(job, 0, keyValue, text(""))), "got string of 0 bytes, want a string of 1 to 512"},
		"a long value":        {11, answer(105, pairs(job, 0, keyValue, text(strings.Repeat("x", 513)))), "got string of 513 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			tr := readTranscript(t, ompi4)
			ours, theirs := net.Pipe()
			served := make(chan struct{})
			go func() {
				defer close(served)
				if err := tr.serve(theirs, c.before); err != nil {
					t.Error(err)
				}
				theirs.Write(c.lie)
			}()
			_, err := tr.publish(t.Context(), ours)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "PMIx server 127.0.0.1:4000 (v41): ") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			theirs.Close()
			<-served
		})
	}
}

func TestTheRanksOfTheHostMayBeUnknown(t *testing.T) {
	for name, body := range map[string][]byte{
		"an error":  {2, 91}, // status -46
		"no pair":   {2, 0},
		"a regexp":  pairs("1891631105", allRanks, keyLocalRanks, text("pmix[0-3]")),
		"not us":    pairs("1891631105", allRanks, keyLocalRanks, text("1,2")),
		"too high":  pairs("1891631105", allRanks, keyLocalRanks, text("0,4")),
		"one twice": pairs("1891631105", allRanks, keyLocalRanks, text("0,1,1")),
		"a number":  pairs("1891631105", allRanks, keyLocalRanks, number(0)),
	} {
		t.Run(name, func(t *testing.T) {
			tr := readTranscript(t, ompi4)
			tr.entries[5].bytes = answer(102, body)
			ours, theirs := net.Pipe()
			go tr.serve(theirs, len(tr.entries))
			if layout, err := tr.publish(t.Context(), ours); layout != "0 4 -1 -1" || err != nil {
				t.Errorf("got %q, %v; want the host's ranks unknown", layout, err)
			}
		})
	}
}

func TestRankZeroPublishesAValueOfBoundedSize(t *testing.T) {
	for _, n := range []int{0, maxValue + 1} {
		c := &ServerConn{}
		if _, err := c.Exchange(t.Context(), strings.Repeat("x", n)); err == nil || !strings.Contains(err.Error(), "want 1 to 512") {
			t.Errorf("%d bytes: got %v, want an error", n, err)
		}
	}
}

func TestTheRanksOfTheHostMayBeInAnyOrder(t *testing.T) {
	for rank, want := range map[int]int{1: 0, 4: 1, 7: 2} {
		if index, length := localIndex("7,1,4", rank, 8); index != want || length != 3 {
			t.Errorf("rank %d: got %d of %d, want %d of 3", rank, index, length, want)
		}
	}
}
