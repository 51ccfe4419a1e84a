//go:build etcd

package main

import (
	"github.com/tutti-go/tutti/bootstrap/etcd"
	"github.com/tutti-go/tutti/comm"
)

// stores lets the ranks meet in etcd, with TUTTI_STORE=etcd://host:port/prefix. It is in a file of
// its own because the client of etcd makes the program larger:
//
//	go build -tags etcd -o bin/ ./examples/digits
var stores = comm.WithStore(etcd.New(etcd.Config{}))
