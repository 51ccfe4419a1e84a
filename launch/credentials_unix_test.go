//go:build unix

package launch

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/jobca"
)

func TestEachRankInheritsItsOwnCredentials(t *testing.T) {
	ca, err := jobca.New("job-x")
	if err != nil {
		t.Fatal(err)
	}
	r := &run{ca: ca, secret: random(16)}
	for id := range 2 {
		text, err := r.bundle(r.secret, id, 0)
		if err != nil {
			t.Fatal(err)
		}
		f, err := privateFile(text)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if text, err = io.ReadAll(f); err != nil {
			t.Fatal(err)
		}
		b, err := jobca.ParseBundle(text)
		if err != nil {
			t.Fatal(err)
		}
		if b.Credentials.Name() != jobca.NewName("job-x", 0, id) || !bytes.Equal(b.Secret, r.secret) {
			t.Errorf("rank %d: got the credentials of %v, and the secret %x", id, b.Credentials.Name(), b.Secret)
		}
		if n := bytes.Count(text, []byte("PRIVATE KEY---")); n != 2 { // the begin and the end of one block
			t.Errorf("rank %d: got %d lines about private keys, want those of one key", id, n)
		}
	}
}

func TestAPipeServesWhereThereAreNoMemoryFiles(t *testing.T) {
	text := []byte(strings.Repeat("credentials\n", 200))
	f, err := filledPipe(text)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, text) {
		t.Errorf("got %d bytes and %v, want %d", len(got), err, len(text))
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("got %v and %v, want a pipe", info.Mode(), err)
	}
}
