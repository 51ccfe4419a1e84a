package unixsock_test

import (
	"net"
	"os"
	"strings"
	"testing"

	"example.com/unixsock"
	"github.com/tutti-go/tutti/transport/transporttest"
)

func TestTheTransportKeepsTheContract(t *testing.T) {
	transporttest.Run(t, func(tb testing.TB, n int) []transporttest.Node {
		dir, err := os.MkdirTemp("", "unixsock") // a short name, because a socket's path has at most 107 bytes
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { os.RemoveAll(dir) })
		nodes := make([]transporttest.Node, n)
		for i := range nodes {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				tb.Fatal(err)
			}
			nodes[i] = transporttest.Node{Transport: unixsock.New(dir), Listener: l}
		}
		return nodes
	})
}

// The code blocks of the tutorial must match the code of this package.
func TestTheTutorialShowsThisCode(t *testing.T) {
	page, err := os.ReadFile("../../transports.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, name := range []string{"transport.go", "conn.go", "unixsock_test.go", "allreduce/main.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("docs/transports.md: got no Go code, want some")
	}
	for _, b := range blocks {
		b, _, _ = strings.Cut(b, "```")
		if !strings.Contains(code.String(), b) {
			t.Errorf("docs/transports.md shows code that is not in this folder:\n%s", b)
		}
	}
}
