// Package grpc implements package transport over gRPC: each Conn is one
// bidirectional stream of raw bytes on a connection of its own.
package grpc
