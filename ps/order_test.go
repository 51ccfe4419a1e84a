package ps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/snapshot"
)

// Where several things are wrong, the error is about the same one each time.
func TestErrorsHaveAFixedOrder(t *testing.T) {
	const servers, tensors = 8, 8
	dir := t.TempDir()
	made, err := snapshot.Begin(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Commit(); err != nil {
		t.Fatal(err)
	}
	err = comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		for range 10 {
			n := &node{c: c, members: make([]member, servers)}
			cl := &Client{n: n, links: make(map[int]*link)}
			n.epoch = &epoch{ranks: make([]int, servers)}
			for r := range n.members {
				n.members[r].serves = true
				cl.links[r] = &link{cl: cl, rank: r, err: fault.New(fault.PeerLost, "ps", 0, "server %d", r)}
			}
			if err := cl.detach(ctx, "ps close", lowest); err == nil || !strings.Contains(err.Error(), "server 0") {
				return fmt.Errorf("close: got %w, want the error of server 0", err)
			}

			a := newArchive(&Server{n: n})
			l := message.LoadRequest{Dir: dir}
			for i := range tensors {
				l.Tensors = append(l.Tensors, message.Registered{Spec: message.Spec{Name: fmt.Sprint("tensor ", i)},
					Parts: message.PartList{Parts: []message.PartSpec{{Servers: []int{0}}}}})
			}
			if err := a.loadAll(&l); err == nil || !strings.Contains(err.Error(), "part 0 of tensor 0: no file has it") {
				return fmt.Errorf("restore: got %w, want the first tensor without a part", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for range 10 {
		err = comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			_, err := Connect(ctx, c, AlsoServe(), WithPart(1000+1000*c.Rank()), WithCredit(1e6+c.Rank()), WithLostWorkers(LostWorkers(c.Rank())))
			return err
		})
		if !errors.Is(err, fault.Mismatch) || !strings.Contains(err.Error(), "WithPart: got 1000 on rank 0 and 2000 on rank 1") {
			t.Fatalf("connect: got %v, want the first option that differs", err)
		}
	}
}
