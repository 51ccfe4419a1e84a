// Package snapshot writes the state of several servers to files, and reads the state back on any
// number of servers.
//
// It knows parts as a head and a stream of bytes. It does not know tensors, versions or clients, and
// it neither stops nor copies anything while a part is written. Package ps encodes the heads, and
// package storage the streams.
//
// # Files
//
// All servers share one directory, for example on a network file system. Each snapshot has a
// directory of its own within it, and each server writes one file:
//
//	DIR/snapshot-00000041/manifest.json
//	DIR/snapshot-00000041/server-4
//	DIR/snapshot-00000041/server-5
//	DIR/snapshot-00000042/server-4       not complete: it has no manifest yet
//
// The manifest names all files of the snapshot, with their sizes and checksums. It is written last,
// and atomically, after all files are on the disk. A snapshot without a manifest does not count, so
// a crash at any time leaves the snapshots before it valid. The package removes no snapshot except
// one that has failed.
//
// # Format of a server's file
//
// Integers are little endian. Checksums are CRC-32C. The file begins with
//
//	offset  bytes  field
//	0       8      "tuttips\n"
//	8       4      format, 1
//	12      4      rank of the server
//	16      8      number of the snapshot
//	24      4      checksum of bytes 0 to 23
//
// and goes on with chunks:
//
//	offset  bytes  field
//	0       4      kind: 1 head of a part, 2 data of the part, 3 end of the file
//	4       4      n, the size of the content
//	8       8      index of the chunk, from 0
//	16      4      checksum of the content
//	20      4      checksum of bytes 0 to 19
//	24      n      content
//
// A part is a chunk of kind 1 and any number of chunks of kind 2. A head has at most MaxHead bytes,
// and data at most 4 MiB less the 24 bytes above. The last chunk has the content
//
//	offset  bytes  field
//	0       8      number of parts
//	8       4      checksum of the first 24 bytes of the file, and of the first 20 bytes of all chunks
//	               before this one
//
// The last checksum covers the whole file, because it covers the checksums of all contents.
//
// # Manifest
//
// The manifest is JSON: an object with "format", 1, "crc32c", the checksum of the text of
// "snapshot", and "snapshot", a Snapshot.
package snapshot
