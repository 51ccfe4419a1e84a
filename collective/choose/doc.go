// Package choose predicts what algorithms cost, and turns measured times into the
// rules of a collective.Table.
//
// A Model holds α, β and γ of each wire; the predicted time of an algorithm is the
// sum of the counts of its Cost, each times its factor. A Tuning is what
// `tuttibench tune` has measured in one job: the model, the times, and the rules
// that follow from the times. It is kept in a file.
//
// # The file
//
// A tuning file is one JSON object. Fields that are not listed here, or come
// twice, are refused, and so are more than MaxFile bytes.
//
//	tutti_tuning  the version of the format: 1
//	machine       where it was measured: processor, system, Go
//	commit        which tutti measured it
//	command       the command that measured it
//	taken         when, as in RFC 3339
//	gamma_us_per_MiB  to fold a MiB
//	links         how long a message takes, a line per wire and size:
//	              wire, up_to_bytes (missing: any), alpha_us, beta_us_per_MiB;
//	              the wire "shared" is memory that ranks have in common
//	rules         which algorithm runs; the first that covers a call is followed:
//	              op, algorithm, and each of these where it limits: wire,
//	              min_ranks, max_ranks, up_to_bytes; segment, in bytes
//	times         what the rules follow from: op, algorithm, wire, ranks, bytes,
//	              segment, us
//
// The package does not know files, communicators, transports or clocks.
package choose
