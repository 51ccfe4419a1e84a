// Package e2e tests whole jobs: real processes, real signals, real sockets. It
// holds tests only.
//
// The test binary plays every part. Run by go test it is the director; by its
// environment it is tuttirun, or a rank of a job that acts the scene it is told.
// A rank says what becomes of each call in lines of JSON on standard output (see
// event), so the director waits for lines and never for time. What a rank does
// next it learns from gates, pipes that the director closes.
//
// It knows the public API, the launcher, and the bytes of the handshake as
// package mesh documents them; nothing else of what lies inside.
package e2e
