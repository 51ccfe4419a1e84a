// Package choose predicts the cost of algorithms, and turns measured times into the
// rules of a collective.Table.
//
// A Model holds α, β and γ of each wire. The predicted time of an algorithm is the sum
// of the counts of its Cost, each multiplied by its factor. A TuningFile is what
// `tuttibench tune` has measured in one job: the model, the times, and the rules that
// follow from the times. Predictions only explain; the rules follow from times.
//
// # The file
//
// A tuning file is one JSON object of at most MaxFile bytes. Unknown fields, and
// fields that occur twice, are refused.
//
//	tutti_tuning  the version of the format: 1
//	machine       where it was measured: processor, system, Go
//	commit        which tutti measured it
//	command       the command that measured it
//	taken         when, as in RFC 3339
//	gamma_us_per_MiB  to fold a MiB
//	links         the time of a message, one entry per wire and size:
//	              wire, up_to_bytes (missing: any), alpha_us, beta_us_per_MiB;
//	              the wire "shared" is memory that ranks share
//	rules         which algorithm runs; a call follows the first rule that covers it:
//	              op, algorithm, and these where they set a limit: wire,
//	              min_ranks, max_ranks, up_to_bytes; segment, in bytes
//	times         what the rules follow from: op, algorithm, wire, ranks, bytes,
//	              segment, us
//
// The package does not know files, communicators, transports or clocks.
package choose
