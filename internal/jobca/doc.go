// Package jobca makes the certificates by which the ranks of a job recognise each other, and checks
// them. It does not know who dials whom, what a certificate protects, or how it reaches a rank.
//
// An Authority is the job's certificate authority (CA). It signs one certificate per rank and
// incarnation. There are two kinds:
//
//	made by   the CA's private key        who can pose as any rank
//	New       the launcher has it, alone  the launcher
//	Derive    follows from the secret     every process that has the secret
//
// A certificate names its owner in a URI:
//
//	tutti:JOB/INCARNATION/RANK
//
// JOB is the SHA-256 of the job's name, its first 16 bytes in hex: a rank shows its certificate to
// everyone who opens a connection, and the name itself may be telling. There is no other name in it
// but Host, the same for all ranks: host names say nothing about who a rank is.
//
// Keys are Ed25519. The private key of a derived CA is HKDF-SHA256 of the secret, with a label that
// holds the version of the scheme and the job. So the same secret gives two jobs different CAs.
//
// A certificate is valid from a day before it was made, because clocks differ, and has no end: the
// job does not know its own, and may connect two ranks for the first time after months. The private
// keys are in the memory of the launcher and the ranks only, so that they end with the job, and no
// other job trusts the CA.
package jobca
