// Package e2e tests whole jobs: real processes, real signals, real sockets. It contains only tests.
//
// The test binary takes every role. Run by go test, it is the test. Its environment can make it
// tuttirun, or a rank of a job that runs a given program. A rank reports the outcome of each call
// as a line of JSON on standard output (see event), so the test waits for lines and never for time.
// Ranks wait for the test at gates, which are pipes that the test closes.
//
// It knows the public API, the launcher, and the bytes of the handshake as package mesh documents
// them. It knows nothing else about the internals of the library.
package e2e
