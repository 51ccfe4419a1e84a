// Package doctor checks whether hosts can run the ranks of a job. It collects facts on each host and
// for pairs of hosts, and diagnoses them.
//
// A probe runs on each host: the program `tuttirun probe`, which Serve implements. The doctor
// starts the probes, sends them requests and reads their answers: one JSON object per line, on the
// probe's standard input and output. A probe ends when its standard input ends. The package does
// not know how a probe is started on another host.
//
// Examine goes through these phases. All hosts work at the same time, except in the last phase:
//
//	facts    each probe reports its host's names, addresses, limits, cores and devices, and looks
//	         up the names of other hosts
//	clock    the doctor compares each host's clock with its own
//	listen   each probe opens a listener as a rank of a job would, by package bootstrap
//	dial     each probe dials the listeners of other hosts, and sends a small message and a large
//	         one; the latter needs packets of full size
//	measure  one pair after another measures latency and bandwidth
//
// Diagnose decides from the facts what is wrong. It is a pure function.
//
// # Bounds
//
// Each request has a deadline, after which its host counts as silent. A line has at most maxLine
// bytes. A listener accepts only connections that begin with the random token of this run, at most
// maxConns at a time, and closes each after connLimit. The token need not protect anything: it only
// keeps other processes out of a measurement, and the listener discards what it reads.
//
// With more than allPairs hosts, a host dials only some others; see peersOf. At most maxMeasured
// pairs are measured. The report says so.
package doctor
