// Package storage keeps the values of one server's parts of tensors, and the memory of their
// optimizers: Dense holds consecutive elements of a vector, Table holds rows by an int64 index.
//
// One goroutine owns a Dense or a Table and makes all calls, with three exceptions. Any goroutine
// may release a Buffer, and may read Rows and Bytes. One other goroutine may write a Save and close
// it.
//
// # Rows
//
// A row exists from its first change. Before it, Pull returns what the Initializer computes from
// the tensor's name and the index. Rows lie in slabs of at most 512 KiB, or one row. The memory of a
// table grows by one slab at a time, and rows never move:
//
//	row   8 bytes  index, int64
//	      width    values
//	      width    each slot of the optimizer
//	      8 bytes  number of updates, if the optimizer needs it
//	               padding to the alignment of the elements
//
// An extendible hash index finds the rows (R. Fagin et al., ACM TODS 4(3), 1979). Its segments have
// 4,095 slots of 32 bits, and split one at a time when 13 of 16 slots are in use. So no change waits
// for the whole index to be rebuilt, and the index takes at most 10 bytes per row.
//
//	slot  high bits  a part of the hash, so that few other rows are compared
//	      low bits   number of the row plus 1; 0: free
//
// # Saves
//
// A Save holds the state at the time when it was made. A Dense copies a vector before it changes it,
// if a Save or a reply holds it. A Table copies each row before its first change, if the row has
// not been written yet. So the owner waits at most for the copy of one slab, and the copies of a
// Save take at most as much memory as the state. They are not taken from the Budget, because a
// change must not fail because of a Save.
//
//	offset  bytes  a saved state, in the host's byte order
//	0       4      0x74757073
//	4       1      version, 1
//	5       1      1: vector; 2: table
//	6       1      dtype
//	7       1      slots of the optimizer, plus 128 if it needs the number of updates
//	8       8      vector: first element; table: width
//	16      8      number of elements or rows
//	24      8      vector: number of updates; table: bytes of a row
//	32             vector: values, and each slot; table: rows, in any order
//
// The package does not know messages, ranks or versions of tensors.
package storage
