// Package fault defines the one error type of this module.
//
// A Kind answers "what should the caller do now?", never "which line failed?". Programs branch on
// the Kind with errors.Is; people read Op, Rank, Peers and the cause. No program should have to
// match text.
//
// The package does not know which rank sends an error, or over which transport. It only defines the
// form in which an error travels. All ranks that receive the same bytes report the same error, and
// blame the same ranks.
//
// # Wire form
//
// The wire form of an error has at most MaxWire bytes. Integers are little endian. A text is a
// uint16 length and that many bytes of UTF-8.
//
//	offset  bytes  field
//	0       1      version, 1
//	1       1      Kind
//	2       4      Rank, int32
//	6       4      marks of the cause: bit k is set when errors.Is(Err, Kind(k));
//	               bit 30 for context.Canceled, bit 31 for context.DeadlineExceeded
//	10      text   Op
//	        text   the cause in words; empty with no marks when there is none
//	        1      number of peers, at most MaxPeers
//	               for each of them
//	        4        Rank, int32
//	        text     Host
//	        text     Call
//	        text     At
//
// The cause travels as words and marks, so that on the receiving rank errors.Is still finds a
// Mismatch below a Revoked. The concrete type of the cause does not travel.
package fault
