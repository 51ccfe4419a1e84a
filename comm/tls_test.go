package comm_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/tlstest"
	"github.com/tutti-go/tutti/internal/test/worldtest"
	linked "github.com/tutti-go/tutti/transport/wires"
)

func TestCollectivesRunUnderMutualTLS(t *testing.T) {
	id := tlstest.New(t)
	for _, wire := range []string{"tcp", "grpc"} {
		t.Run(wire, func(t *testing.T) {
			err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
				for _, count := range []int{1, 1000, 1_000_003} {
					for _, call := range worldtest.Collectives[float32]() {
						if err := call.Run(ctx, c, count/c.Size(), new(worldtest.BufferTracker)); err != nil {
							return err
						}
					}
				}
				return nil
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire), comm.WithTLS(comm.TLS{CertFile: id.Cert, KeyFile: id.Key, CAFile: id.CA, Mutual: true}))
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestARankWhoseCertificateNobodyKnowsIsRefused(t *testing.T) {
	id := tlstest.New(t)
	untrusted := tlstest.New(t)
	for _, wire := range []string{"tcp", "grpc"} {
		t.Run(wire, func(t *testing.T) {
			err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error { return nil },
				comm.WithTransport(linked.All()...), comm.WithTransportName(wire), comm.WithTLS(comm.TLS{CertFile: id.Cert, KeyFile: id.Key, CAFile: untrusted.CA, Mutual: true}))
			if err == nil {
				t.Fatal("the ranks met although neither knows the other's authority")
			}
			var f *fault.Error
			if !errors.As(err, &f) {
				t.Errorf("got %v, which is no fault", err)
			}
			t.Log(err)
		})
	}
}
