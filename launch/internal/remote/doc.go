// Package remote connects the launcher with a process on another host, tuttirun remote, which starts
// ranks there. It starts that process by ssh, on many hosts in a tree, and carries commands, events
// and the ranks' standard streams over the process's standard input and output.
//
// It does not know what a job is: package launch sends the commands, and carries them out on the
// other host. It opens no port.
//
// # The connection
//
// The host's end writes one line first, its greeting; see greeting. The launcher compares the
// versions and answers with its own greeting. From then on both speak HTTP/2 by gRPC, with these
// methods:
//
//	Control  one per connection: commands from the launcher, events from the host, and heartbeats
//	Stream   one per standard stream, and per connection of a rank to the launcher: raw bytes
//	Tunnel   one per further host: a tunnelSpec, by which this host starts that host, and then raw
//	         bytes of its connection
//
// Messages of Control are JSON. They need no generated code and no rules for compatibility, because
// both ends have the same version. Data that may not be UTF-8, such as arguments and environments,
// is base64 in JSON.
//
// # Who waits for what, and what ends it
//
//	wait                       ended by
//	Connect, for the greeting  the greeting; the end of the starter; the context
//	Serve, for the greeting    the greeting; the end of the input; greetingLimit
//	either end, for bytes      bytes; silenceLimit seconds without any
//	a message in the queue     the far end's reading; sendLimit intervals
//	Pause                      the host's answer; silenceLimit intervals; the end of the Link
//	a Read or Write of a Conn  bytes; Close of either end; its deadline; the end of the connection
//	Sender.Done                the end of the connection, at once
//	Serve, after Sender.Done   the ends of the starters of its tunnels; the CommandHandler's return
//	the end of a starter       its end; closeLimit, and then it is killed
//	its standard error         the end of the output; closeLimit
//	the end of a Tunnel        the report of the host that started it; explainLimit; its Link's end
//
// So a host that falls silent is detected within silenceLimit, one more interval and explainLimit,
// at any depth of the tree.
//
// While the user has stopped the launcher, a host counts no intervals; see Link.Pause. If the
// network is cut meanwhile, only the host's sshd, or its agent, can notice that. An agent needs 20
// s. sshd notices it when TCP gives up retransmitting, by default after a quarter of an hour on
// Linux.
//
// # What bounds memory
//
//	what                                   bound
//	a greeting                             maxGreeting
//	a message to the host, to the launcher maxCommand, maxEvent
//	messages that wait to be sent          maxQueue of them
//	events that nobody has received        eventQueue
//	bytes of a Conn that nobody has read   the window of HTTP/2, and one message
//	standard error of a starter            maxLines lines of maxLine bytes
package remote
