// Package message encodes the requests of clients, the replies of servers, and what servers send to
// each other, which has the form of a request. It does not know how they travel, or what tensors hold.
//
// All integers are little endian. A request begins with its head:
//
//	offset  bytes  field
//	0       1      Kind
//	1       1      DType of the body's values: the tensor's own, or that of its compression
//	2       1      Entry, the kind of the log entry of a Replicate; else zero
//	3       1      zero
//	4       4      Origin, the rank of the client whose entry a Replicate forwards; else zero
//	8       8      ID, unique among the client's requests; the Index of a Replicate and a Replicated
//	16      4      Tensor
//	20      4      Part
//	24      8      Seq, the number of the push among the client's pushes to this part; 0: no push
//	32      4      Rows, the number of rows of a request to a table
//	36      4      Size of the body
//
// A reply begins with its head:
//
//	offset  bytes  field
//	0       1      ReplyKind
//	1       1      DType of the body's values
//	2       6      zero
//	8       8      ID of the request
//	16      8      Version of the value
//	24      4      Size of the body
//	28      4      zero
//
// A body of at most Inline bytes follows its head in the same message. A larger body is a message
// of its own. The body of a push to a table has the indices, 8 bytes each, and then the rows. The
// body of a pull from a table has the indices only.
package message
