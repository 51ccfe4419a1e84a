//go:build !etcd

package main

import "github.com/tutti-go/tutti/comm"

// stores adds no store. See etcd.go.
var stores = comm.WithStore()
