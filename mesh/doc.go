// Package mesh makes the processes of a job each other's peers. It owns this process's one
// listener, the handshake on every connection, the exchange of addresses, the control links with
// their heartbeats, and the data Conns. It reports which rank or link has failed.
//
// It does not know communicators, tags, element types or algorithms, nor what the frames on a data
// Conn mean. Package mesh/membership, a pure state machine, decides which ranks and links have
// failed. This package carries out its decisions.
//
// # Parts
//
//	mux           one listener; pending conns; which transport a connection speaks, or TLS
//	handshake     identity, both sides of the handshake, over a handshakeConn
//	joinServer    rank 0's side of the address exchange; Mesh.join is the other side
//	control       one goroutine: the membership machine and the control links
//	links, Link   the data Conns: dialled when first needed, one reader at a time
//	ackState      which bytes of a data Conn the peer has received; whether the Conn is silent
//	Waiter        how a goroutine polls links, and sleeps
//
// # Goroutines
//
// The control goroutine owns the membership machine and all control links. Other goroutines reach
// it only by control.post, which never blocks. The control goroutine never waits for a Conn or for
// the layer above. Data Conns have no goroutine of their own: a waiter moves the links it waits
// for, and the transport's goroutine moves the others when their wake-up fires. A ticker arms the
// wake-ups of links that waiters polled and then left. Each dial, each handshake and each
// connection of the mux has a goroutine of its own until it ends.
//
// # Handshake
//
// Every Conn begins with a handshake, a frame at a time. In each frame's head all numbers are
// little endian, and the last 4 bytes are the CRC-32C of those before.
//
//	dialling rank                          accepting rank
//	HELLO              ->
//	                   <-  CHALLENGE       only when both have a secret
//	PROOF              ->
//	                   <-  WELCOME, or at any point REFUSE with its text as body
//
//	every head: 0 "tuti"   4 kind   5 zero   6 version (3)   ...
//
//	HELLO, kind 1, 84 bytes           CHALLENGE, kind 2, 28 bytes
//	 8 byte order, 'L' or 'B'          8 nonce (16)
//	 9 channel: 1 control, 2 data,    24 CRC-32C (4)
//	   3 join                         PROOF, kind 3, 44 bytes
//	10 options (2): 1 has a secret,    8 HMAC (32)
//	   2 bodies carry checksums       40 CRC-32C (4)
//	12 incarnation (4)                WELCOME, kind 4, 64 bytes
//	16 rank (4)                        8 instance (8)
//	20 size (4)                       16 epoch (4), frames received (8)
//	24 the rank that is dialled (4)   28 HMAC, or 0 without a secret (32)
//	28 instance (8)                   60 CRC-32C (4)
//	36 SHA-256 of the job's name,     REFUSE, kind 5, 24 bytes; body: text, <= 512
//	   its first 16 bytes              8 reason (2)
//	52 nonce (16)                     10 zero (2)
//	68 epoch (4)                      12 the refusing rank's value, or 0 (8)
//	72 frames received (8)            20 CRC-32C (4)
//	80 CRC-32C (4)
//
// The HMACs are HMAC-SHA256 under the job's secret over a label that names the side, the whole
// HELLO, the nonce of the CHALLENGE, and the other fields of the WELCOME (0 in the PROOF). So both
// sides prove that they know the secret, and neither side sends it. A proof cannot be replayed
// later, or by the other side. What follows on the Conn is protected by TLS, or not at all. Magic,
// kind and version keep their offsets in every version, so that two versions can refuse each other
// with a reason. This is version 3.
//
// The dialling side proves first, because any process can dial a rank's port, while a rank dials
// only addresses that the job has told it. Before the PROOF, the accepting rank tells only its
// version, its byte order and whether it has a secret. Without a secret, it tells nothing else to a
// peer whose HELLO has another job.
//
// On a connection under TLS with certificates of the job's own CA, TLS has checked the job and the
// incarnation before the HELLO. Each side also compares the name that the peer has proven
// (tlsopt.Named) with the rank that it dialled, or that the HELLO claims.
//
// The instance is a random number of each process. The first process that joins as rank r, or
// without an address exchange the first that proves to be rank r, is rank r. Any other process that
// claims to be rank r is refused.
//
// # Address exchange
//
// With Config.Root, each rank opens a Conn of the join channel to rank 0 and sends its address in a
// RECORD, right after its HELLO or PROOF. The WELCOME follows the RECORD, and its instance is 0.
// Rank 0 reports once a second which ranks are missing, and sends all records when all ranks have
// joined. A rank whose deadline ends first sends a REFUSE, and rank 0 answers with a WAIT and a REFUSE. From the
// TABLE on, every rank knows the instances of all ranks. In a job without a secret, only a process
// that has joined knows them, so no other process can pose as a rank. A RECORD's body is one
// record, a TABLE's as many as fit.
//
//	RECORD, kind 6, 12 bytes          record, at most 512 bytes
//	 8 CRC-32C (4)                     0 instance (8)
//	WAIT, kind 7, 16 bytes             8 length of the address (2)
//	 8 how many are missing (4)       10 address
//	12 CRC-32C (4)                       length of the host's name (1)
//	   body: the first 64 of them,       host's name, <= 64
//	   4 bytes each                   TABLE, kind 8, 24 bytes
//	                                   8 the first record's rank (4)
//	                                  12 how many records (4)
//	                                  16 how many ranks (4)
//	                                  20 CRC-32C (4)
//
// # Control messages
//
// A control link carries the messages of package mesh/membership, which documents their meaning.
// The head of each message has 40 bytes, and the body has at most 4096.
//
//	 0 kind (1), code (1), zero (2)     16 ref (4)
//	 4 origin (4)                       20 age in ns (8)
//	 8 seq (4)                          28 length of the body (4)
//	12 about (4)                        32 CRC-32C of the body (4)
//	                                    36 CRC-32C of the head (4)
//
// # Silent connections
//
// A connection can go silent: a firewall has forgotten it, or packets above some size vanish. The
// kernel reports nothing for minutes. If a proxy between the ranks acknowledges bytes and then
// loses them, the kernel never reports it. So the Mesh at one end compares the bytes that it has
// sent with the bytes that the other end has received.
//
// Frames over tcp and grpc carry acknowledgements. If the bytes that were sent a second ago are not
// acknowledged, this rank's Mesh asks the peer's Mesh over the control links, which work without
// the data Conn:
//
//	this rank, once a second                 the peer
//	an Ask, code 1, without a body      ->   moves its end of the link until nothing is left to read
//	                                    <-   an Answer; body:
//	                                          0 bytes of frames received (8)
//	                                          8 bytes arrived, of half messages, too (8)
//	                                         16 1: nothing was left to read (1)
//	no progress for Config.Stall:
//	  the link fails, or is opened again
//
// A standstill is a time in which bytes are unacknowledged and each answer says that the peer has
// received no more and has nothing left to read. A missing answer ends the standstill. In that case
// the peer is suspended or the whole network is down, and heartbeats detect this. An answer of a
// peer that still has something to read also ends the standstill, because that peer is slow and its
// link works.
//
// The Mesh asks nothing about links over memory, shm and verbs. No relay lies between their ends,
// and nothing forgets a connection. An RDMA device reports work requests that the peer's device
// does not acknowledge.
//
// # Opening a link again
//
// With Config.Redial, a data Conn over tcp or grpc that breaks is dialled again for that time. The
// ranks number the frames of a link from 0, over all its Conns, and they number the Conns: the
// number of a Conn is its epoch. A HELLO proposes an epoch, which is one above that of the last
// Conn. The WELCOME decides the epoch: it is at least the proposed epoch, and higher than every
// epoch that the accepting rank has had. Both carry the number of frames that have arrived whole,
// and each rank sends the later frames again. If the epoch in the HELLO or in the WELCOME is 0, the
// link cannot be opened again, and the IDs of its frames carry no counts.
//
// The ID of a frame on such a link holds the number of frames that its sender has received, in the
// lower 31 bits. If bit 31 is set, the sender asks for an acknowledgement: a frame with an empty
// head, which has no number of its own. If the break cuts a frame, the whole frame is sent again.
//
//	Config.Redial of the two ranks   a broken data Conn
//	0 at one of them, or at both     the link fails at once
//	more than 0 at both              dialled by each rank that notices; the lower rank's dial wins
//
// With Config.Redial, control links are also dialled again if all links of a rank break at once, or
// if the only link between two ranks breaks. Without it, the rank is lost in these cases. A refused
// dial shows that no process listens, so the rank is dead. See package membership.
//
// # Bounds on unauthenticated peers
//
// A connection whose peer has proven nothing holds one of 64 slots, for at most 5 s, and at most 4
// KiB of this process's memory: a pendingConn, 32 peeked bytes, and a handshakeConn with its one
// frame, whose body is at most 512 bytes. Its first 4 bytes must come within 1 s. When all slots
// are taken, the next connection takes the slot of another connection. The victim is the oldest
// connection of the source address that holds the most slots. A connection keeps its slot for at
// least 100 ms, for 500 ms after the first bytes of TLS, and for 1 s after a hello that names the
// job. So unauthenticated peers delay a rank, but cannot keep it out. Refused connections cost at
// most 20 lines of log at once, and one per second.
package mesh
