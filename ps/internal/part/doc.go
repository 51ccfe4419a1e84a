// Package part decides what happens to one part of a tensor or table on one of the servers that
// hold a copy of the part. It decides when a push is applied and acknowledged, what version a pull
// shows, which pushes are resends, and what the other copies receive.
//
// A Machine is pure: a Step depends on the Machine and the input only. The executor around it owns
// the values, the buffers and the wires, and carries out the outputs in their order. The package
// does not know values, communicators or time.
//
// # Copies
//
// One copy is the primary, the others are replicas. The primary gives each push the next index of
// the part's log and forwards it. A replica applies entries in the order of their indices and
// answers. The primary applies an entry when all replicas have applied it, and then acknowledges
// the push. So the primary's values never show what a loss could take back, and a pull needs no
// further check.
//
//	client          primary                          replica
//	push (seq 7) -> log, index 31
//	                Forward 31                    -> Fold (and Complete)
//	                                              <- ReplicaAcknowledge 31
//	                Fold (and Complete)
//	             <- Acknowledge
//
// The folding order, the end of a round and the recognition of resends depend only on the log and
// on the Members, so all copies hold the same bits.
//
// # Clients
//
// A client numbers its pushes, Sets and its Close to one part 1, 2, and so on. A copy keeps the
// last number of each client. An entry whose number is not higher is a resend: the machine
// acknowledges it and does not apply it again. The requests of one client to one part are handled
// in their order: a pull that waits holds back the client's later requests to that part.
//
// # Modes
//
//	mode          a push is applied                        a pull waits for
//	Synchronous   when its round is complete: a push of    the version of the client's last push
//	              every worker, folded in rank order
//	Asynchronous  at once                                  the client's own pushes
//	Bounded       at once                                  the client's own pushes, and all but the
//	                                                       last Staleness of each other worker
//
// In Synchronous mode a client has at most one contribution in the log that is not part of a
// version. Its next push waits, unacknowledged, for the end of the round. A pull is answered with
// exactly the version of the client's last push, because the next round needs the client's next
// push. That holds across epochs only if the client keeps a rule: it sends an entry to a Synchronous
// part after the answers to all its pulls of that part have arrived. Otherwise an answer may be lost
// with its epoch, and the version with it.
//
// In Bounded mode, a worker that has pushed c times reads values that include the first c -
// Staleness pushes of every other worker. The worker with the fewest pushes never waits, so there is
// no deadlock.
//
// # Lost workers
//
// Under Continue a round does without a lost worker; a contribution that was applied counts. Under
// Fail, pushes and waiting pulls of a Synchronous part are refused while a worker is lost, and in
// Bounded mode the pulls that wait for it. A worker that has left no longer counts in either policy.
//
// # Epochs
//
//	            Begin                     Seal
//	(sealed) ----------> (running) --------------------> (sealed)
//	                     requests and      requests in the machine end with Sealed;
//	                     acknowledgements  the log is applied; State is what
//	                     of this epoch     travels to other copies
//
// A Machine starts sealed. Begin needs all copies to have the same Index, which the hand-over
// between two epochs provides: the copy with the highest Index is transferred to the others. That
// copy includes all that was acknowledged, because an acknowledgement needs all live copies. Clients
// send what was not acknowledged again, in its order, after all copies have begun. An input of
// another epoch has no effect: it is refused with OtherEpoch.
package part
