// Package e2e tests whole jobs: real processes, real signals, real sockets. It holds tests
// only.
//
// The test binary takes every role. Run by go test it is the test; by its environment it is
// tuttirun, or a rank of a job that runs the program it is given. A rank reports the outcome
// of each call as a line of JSON on standard output (see event), so the test waits for lines
// and never for time. Ranks wait for the test at gates, which are pipes that the test closes.
//
// It knows the public API, the launcher, and the bytes of the handshake as package mesh
// documents them; nothing else of the library's inside.
package e2e
