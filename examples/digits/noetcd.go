//go:build !etcd

package main

import "github.com/tutti-go/tutti/comm"

// stores adds nothing. See etcd.go.
var stores = comm.WithStore()
