// Package agent starts processes on other hosts without ssh. An Agent, tuttirun agent, runs on each
// host, as one user. A Dialer, in the launcher, asks it to start a process. The Agent starts a
// program that it alone chooses, and copies bytes between the connection and the standard input and
// output of the process, until either ends.
//
// The package does not know what the process does, or what the bytes mean.
//
// # The connection
//
//	launcher                       agent
//	TLS 1.3 handshake, mutual
//	                      ------>
//	length, verb          ------>
//	                      <------  length, refusal; a length of 0 accepts
//	bytes                 <----->  bytes
//	end of the bytes      <----->  end of the bytes
//
// A length is one byte. The verb names one of the programs that the agent starts. There are no
// session tickets and no 0-RTT data, so the verb arrives after a handshake with a fresh key
// exchange, and no recorded bytes can be replayed. The ALPN name has the version of this protocol.
//
// # Who waits for what, and what ends it
//
//	wait                             ended by
//	a handshake, a verb              its message; handshakeTimeout; a newer connection that needs
//	                                 the slot, after slotHold
//	Serve, for its processes         their ends
//	a process, for bytes             bytes; the end of the connection; if the launcher's host does
//	                                 not answer, keepAlive, or cutTimeout and a third of it
//	the agent, for a process         its reading; stuckTimeout
//	a process that has no input left its end; endTimeout, then SIGKILL of its process group
//	the last bytes to the launcher   the launcher's reading; endTimeout
//	Start                            the agent's answer; absentTimeout without an agent;
//	                                 dialTimeout; its context
//
// # What bounds memory and processes
//
//	what                                  bound
//	connections that have proven nothing  pendingSlots, of at most 256 KiB in a handshake; when
//	                                      none may be evicted, a source with one gets no more
//	processes                             --max-jobs
//	a verb, a refusal                     255 bytes
//	bytes on their way                    a buffer of 32 KiB in each direction
//	a line of a process's standard error  maxLine bytes; the rest of the line is dropped
package agent
