package remote

import (
	"context"
	"fmt"
	"io"
)

// DefaultFanOut is how many hosts one process starts by default.
const DefaultFanOut = 32

// ConnectAll connects to all hosts at the same time. It calls report once for each host, with the
// host's index, from several goroutines, and returns after the last call. If by is an *SSH, the
// hosts form a tree: the launcher starts fanOut of them, and each host starts up to fanOut further
// ones. With another Starter, the launcher starts all hosts itself.
//
// If the parent of a host is not connected, the host is not started, and report gets a
// ThroughError.
func ConnectAll(ctx context.Context, by Starter, fanOut int, hosts []string, report func(i int, l *Link, err error)) {
	ssh, _ := by.(*SSH)
	if ssh == nil || fanOut <= 0 {
		fanOut = max(1, len(hosts))
	}
	links := make([]chan *Link, len(hosts))
	for i := range links {
		links[i] = make(chan *Link, fanOut) // room for one link per child
	}
	done := make(chan struct{})
	for i := range hosts {
		go func() {
			l, err := connectVia(ctx, by, ssh, hosts, i, parent(i, fanOut), links)
			for range fanOut {
				links[i] <- l
			}
			report(i, l, err)
			done <- struct{}{}
		}()
	}
	for range hosts {
		<-done
	}
}

// parent returns the index of the host that starts host i, or -1 for the launcher. The hosts are
// numbered level by level.
func parent(i, fanOut int) int { return i/fanOut - 1 }

func connectVia(ctx context.Context, by Starter, ssh *SSH, hosts []string, i, parent int, links []chan *Link) (*Link, error) {
	host := hosts[i]
	var rwc io.ReadWriteCloser
	var err error
	if parent < 0 {
		rwc, err = by.Start(ctx, host, "remote")
	} else {
		via := <-links[parent]
		if via == nil {
			return nil, fmt.Errorf("%s: %w", host, &ThroughError{hosts[parent], "not started, because " + hosts[parent] + " would have started it"})
		}
		rwc, err = via.Tunnel(ssh, host, "remote")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", host, err)
	}
	return Connect(ctx, host, rwc)
}
