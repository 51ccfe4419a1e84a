// Package negotiate decides which named tensors the ranks of a coordinator
// reduce next, in which order, and which of them together.
//
// It is two pure state machines. A Member is one rank's: it is told what the
// program submits, and says what to send to the leader and what to run. The
// Leader is on rank 0: it hears all Members, and what it says is told to all of
// them, itself included, in one order. Step takes an input and the time, and
// returns outputs. The package knows no clock, no goroutine, no communicator and
// no element of any tensor; package coordinator carries out what it says. So the
// same decisions run in a simulation of all ranks in a loop, in property tests
// over thousands of schedules, and in transcripts under testdata.
//
// # When a tensor runs
//
// A tensor is ready when every rank of its process set has submitted its name,
// or has joined. Ready tensors are launched in the order of their priority, then
// of their number; because that order is made in one place, ranks may submit in
// any order. Tensors above Config.Partition are launched in parts. Once a program
// has given any tensor a priority, at most Config.Credit bytes are launched beyond
// what rank 0 has carried out, so that an urgent tensor overtakes large ones that
// are ready before it; until then Config.Unranked may allow more, so that ranks do
// not wait for orders.
//
// Launching waits until nothing is half submitted, or Config.Fusion bytes are
// ready, or Config.Cycle has passed since the first became ready. So small
// tensors find company, and the last one of a step waits for nothing.
//
// # Fusion
//
// Small tensors of one kind, type, operator, root and process set go into one
// Bucket. Those of different priorities share one up to Config.Partition bytes,
// so that the urgent ones do not wait for a large one.
//
// # The cache
//
// A tensor gets a number from the leader when it first runs. From then on a
// Member that submits the same thing under the same name sends one bit, and the
// leader launches runs of numbers. A number means the same to all ranks: the
// leader gives one to another name only when every Member has acknowledged that
// the old meaning is over, and understands it until then.
//
// # When ranks disagree
//
// Ranks that submit a name with different kinds, types, shapes, operators,
// roots, scales, priorities or groups all get fault.Mismatch, naming the lowest
// rank of each of two sides, once all of them have submitted it; nothing else is
// disturbed. A name that is submitted again before it is done is refused on that
// rank, naming both places, and the first goes on.
//
// # Ranks that run out
//
// A rank that has joined takes part in everything until all ranks have joined,
// without giving anything; a Bucket says who is absent so. A rank that leaves
// will submit nothing more; what needs it fails with fault.Closed.
//
// # Model
//
// model/negotiation.pml is the protocol between the machines as spin reads it:
// messages under way, numbers that are given to other names, joins. `make model`
// explores all interleavings within small bounds for deadlock and agreement, and
// shows that it finds the bugs that are planted in it.
//
// # Wire form
//
// Integers are unsigned varints (signed ones zigzag), texts and lists begin with
// their length. A Member's message, of at most 512 requests; who has more to say
// sends several:
//
//	byte       version, 1
//	byte       marks: 1 joins, 2 leaves, 4 here, 8 fault
//	varint     the number of the last message applied
//	bytes      a bit for each cached tensor that is submitted, least significant
//	           first, without the zero bytes at its end
//	list       requests
//	text       with mark 4: where this rank is now
//	bytes      with mark 8: an error that ends the coordinator, as package fault
//	           writes it
//
// A request is a tensor, then the rows (signed), the list of splits (signed) and
// the text of the place. A tensor is
//
//	varint     process set
//	text       name, at most MaxName bytes
//	byte       kind
//	byte       element type; byte: the type on the wire
//	list       shape (signed)
//	text       operator's name; 8 bytes: its id
//	varint     root (signed)
//	8 bytes    scale before; 8 bytes: scale after (float64)
//	varint     priority (signed)
//	8 bytes    group; varint: tensors in it
//	byte       marks: 1 the operator has no identity, 2 it is never cut into
//	           parts, 4 it is coded
//	byte       with mark 4: the codec; varint: the elements that each rank keeps
//
// The leader's message:
//
//	byte       version, 1
//	varint     its number, from 1 on
//	list       meanings: varint number, byte 1 if for this launch only, a tensor,
//	           the list of rows (signed)
//	list       items, each a byte for its kind, then
//	             run      list of (first number, how many), part, parts, list of absent ranks
//	             fail     list of (set, name); an error
//	             joined   varint: the rank that joined last
//	             set      varint: its number; text: its name; list of ranks
//	             unset    varint: its number; text: its name
//	             where    list of ranks that are asked where they are
//	             abort    an error
//	             bye      nothing
//	             tune     varint: the cycle in ns; varint: bytes of fusion; byte 1
//	                      if the cache is used; byte: class of algorithm
//	list       numbers whose meaning is over
//
// A decoder takes nothing on trust: lengths are checked against what is there
// before anything is allocated, and the state machines refuse what cannot be.
package negotiate
