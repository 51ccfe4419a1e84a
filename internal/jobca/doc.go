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
// A third kind signs no ranks: it is the CA of the agents on a user's hosts and of the launchers
// that dial them. Its private key follows from their secret under another label. AgentConfig and
// LauncherConfig derive it.
//
// A certificate names its owner in a URI:
//
//	tutti:JOB/INCARNATION/RANK
//
// JOB is the first 16 bytes of the SHA-256 of the job's name, in hex. It is a hash because a rank
// shows its certificate to everyone who opens a connection, and the name itself may be
// confidential. The only other name in the certificate is Host, which is equal for all ranks,
// because host names say nothing about who a rank is.
//
// Keys are Ed25519. The private key of a derived CA is HKDF-SHA256 of the secret, with a label that
// contains the version of the scheme and the job. The same secret therefore gives two jobs
// different CAs.
//
// A certificate is valid from a day before it was made, because clocks differ. Its validity has no
// end, because the job does not know its own end, and may connect two ranks for the first time
// after months. The private keys are only in the memory of the launcher and the ranks, so they end
// with the job. No other job trusts the CA.
package jobca
