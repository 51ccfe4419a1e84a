package mesh

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// A reason is a number on the wire that says why a peer is refused. The refusal's text says the
// same for people.
//
// The reasons up to reasonSecret say which field of the two identities differs; see checkProtocol
// and checkHello. The later reasons depend on what has happened in the job.
type reason uint16

const (
	reasonVersion reason = iota + 1
	reasonOrder
	reasonJob
	reasonIncarnation
	reasonSize
	reasonRank      // out of range
	reasonAddressee // this process is not the rank that was dialled
	reasonSums
	reasonSecret
	reasonRankInUse // another process is this rank
	reasonDuplicate // such a connection exists already, or is being opened
	reasonLost      // the dialling rank has been marked dead
	reasonGone      // one of the two ranks is closing, or has closed
	reasonMalformed
	reasonAbsent // the deadline of a rank has ended with ranks missing
	reasonLeft   // the address exchange ended because a rank has left; refusal.theirs is that
	// rank
	reasonName      // the peer's certificate belongs to another rank
	reasonExhausted // the address exchange ended because rank 0 lacks file descriptors
)

// permanent reports whether every later dial would be refused, too. A permanent refusal makes a
// join fail at once, with a text that names the difference. The other refusals are worth a retry.
// Their causes may pass: a connection that is being opened, a rank that is closing, a damaged
// frame, and a process of an earlier incarnation that still listens.
func (r *refusal) permanent(incarnation uint32) bool {
	switch r.reason {
	case reasonDuplicate, reasonLost, reasonGone, reasonMalformed:
		return false
	case reasonIncarnation:
		return r.theirs > uint64(incarnation) // otherwise the peer belongs to an earlier incarnation and will exit
	}
	return true
}

// An identity says which rank this process is. It also holds what both sides of a handshake must
// agree on: job, incarnation, size, checksums, and whether there is a secret. It is immutable.
type identity struct {
	rank, size  int
	job         [jobSize]byte
	incarnation uint32
	instance    uint64 // random: distinguishes processes of the same rank
	secret      []byte
	sums        bool
}

// newIdentity returns the identity that cfg describes, with a new instance. The job's name travels
// as a hash: its length is fixed, and the name is not shown to unauthenticated peers.
func newIdentity(cfg Config) identity {
	id := identity{
		rank: cfg.Rank, size: cfg.Size,
		incarnation: cfg.Incarnation, secret: cfg.Secret, sums: cfg.BodySums,
	}
	sum := sha256.Sum256([]byte(cfg.Job))
	copy(id.job[:], sum[:])
	var b [8]byte
	rand.Read(b[:]) // never fails since Go 1.24
	id.instance = binary.LittleEndian.Uint64(b[:])
	return id
}

// hostOrder returns 'L' or 'B': the byte order of numbers in the bodies that this machine sends.
// Bodies are raw memory, so ranks of different byte orders refuse each other instead of converting.
func hostOrder() byte {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return 'L'
	}
	return 'B'
}

// The labels of the two sides. Each proof covers the label of its side, so it cannot be used as a
// proof of the other side.
const (
	labelAccept = "tutti/3 accepts"
	labelDial   = "tutti/3 dials"
)

// proof returns the HMAC over the label, the hello with all its fields and its nonce, the accepting
// side's nonce, and the welcome's other fields, which are 0 in the proof of the dialling side. Both
// nonces are fresh, so a recorded proof fits no other handshake. The HMAC covers the hello, so a
// relay cannot change a field. The label names the side, so a proof cannot be sent back to its
// sender.
func proof(secret []byte, label string, helloHead []byte, nonce [nonceSize]byte, w welcome) (mac [macSize]byte) {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(label))
	h.Write(helloHead)
	h.Write(nonce[:])
	h.Write(w.position.append(binary.LittleEndian.AppendUint64(nil, w.instance)))
	h.Sum(mac[:0])
	return mac
}

// dial does the dialling side of the handshake. If it returns no error, the peer has welcomed this
// rank, and the frames that follow on the Conn belong to channel l. The argument own is this rank's
// position on a data Conn.
//
//	this rank's secret  the peer answers  then
//	any                 REFUSE            the refusal is the error
//	none                WELCOME           done
//	set                 CHALLENGE         send PROOF, expect WELCOME with a proof, or REFUSE
//	set                 WELCOME           refused: the peer has not asked for the secret
//	none                CHALLENGE         malformed: the peer should have refused
//
// A *refusal says which side refused the other, and why. If the function proven is not nil, dial
// calls it when this rank has nothing more to prove, before dial waits for the welcome.
func (id *identity) dial(ctx context.Context, t *handshakeConn, to int, l channel, own position, proven func()) (welcome, error) {
	h := id.hello(to, l)
	h.position = own
	mine := h.append(nil) // kept in the form that was sent, because the proofs cover its bytes
	t.send(mine, nil)
	if proven == nil {
		proven = func() {}
	}
	if len(id.secret) == 0 {
		proven()
	}

	head, body, err := t.recv(ctx, maxRefusal)
	if err != nil {
		return welcome{}, err
	}
	kind, _, _ := kindOf(head)
	var nonce [nonceSize]byte
	if kind == kindChallenge && len(id.secret) > 0 {
		if nonce, err = parseChallenge(head); err != nil {
			return welcome{}, err
		}
		t.send(appendProof(nil, proof(id.secret, labelDial, mine, nonce, welcome{})), nil)
		proven()
		if head, body, err = t.recv(ctx, maxRefusal); err != nil {
			return welcome{}, err
		}
		kind, _, _ = kindOf(head)
	} else if kind == kindWelcome && len(id.secret) > 0 {
		return welcome{}, &refusal{reason: reasonSecret, text: fmt.Sprintf("secret: rank %d has a secret, and rank %d did not ask for one; give all ranks the same secret", id.rank, to)}
	}
	if kind != kindRefuse {
		return id.checkWelcome(head, body, mine, nonce, to)
	}
	r, err := parseRefusal(head, body)
	if err != nil {
		return welcome{}, err
	}
	return welcome{}, r
}

// checkWelcome reads a WELCOME, and checks the accepting side's proof if this rank has a secret.
func (id *identity) checkWelcome(head, body, mine []byte, nonce [nonceSize]byte, to int) (welcome, error) {
	w, err := parseWelcome(head, body)
	if err != nil {
		return welcome{}, err
	}
	if len(id.secret) > 0 {
		if want := proof(id.secret, labelAccept, mine, nonce, w); !hmac.Equal(w.mac[:], want[:]) {
			return welcome{}, &refusal{reason: reasonSecret, text: fmt.Sprintf("secret: rank %d has another secret than rank %d; give all ranks the same secret", to, id.rank)}
		}
	}
	return w, nil
}

// hello returns this rank's hello to another rank, with a new nonce.
func (id *identity) hello(to int, l channel) hello {
	h := hello{
		version: version, order: hostOrder(), channel: l, incarnation: id.incarnation,
		rank: uint32(id.rank), size: uint32(id.size), to: uint32(to), instance: id.instance, job: id.job,
		options: id.options(),
	}
	rand.Read(h.nonce[:])
	return h
}

// options returns the option bits of this rank's hello.
func (id *identity) options() (o uint16) {
	if len(id.secret) > 0 {
		o |= optionSecret
	}
	if id.sums {
		o |= optionSums
	}
	return o
}

// A greeting is a hello that was accepted, together with the bytes that the proof in the welcome
// covers.
type greeting struct {
	hello
	head  []byte          // the hello as it arrived
	nonce [nonceSize]byte // of the challenge; zero without a secret
}

// welcome adds the proof to the WELCOME that answers g, and returns its head.
func (id *identity) welcome(g greeting, w welcome) []byte {
	if len(id.secret) > 0 {
		w.mac = proof(id.secret, labelAccept, g.head, g.nonce, w)
	}
	return w.append(nil)
}

// accept does the accepting side of the handshake, up to the point where the peer has proven that
// it belongs to the job. The caller then sends the welcome, or refuses for a reason of its own. If
// accept returns a *refusal, it has sent the refusal to the peer. It calls the function named when
// the hello fits this job and a proof must follow.
//
// The peer proves first. Before its proof, the peer learns nothing about this rank but the version,
// the byte order and whether there is a secret.
//
//	checked                        refused
//	version, byte order, secret    at once
//	the proof, if there is secret  at once
//	all other fields               after the proof; without a secret, at once
func (id *identity) accept(ctx context.Context, t *handshakeConn, named func()) (g greeting, err error) {
	if g.head, _, err = t.recv(ctx, 0); err != nil {
		return g, err
	}
	g.hello, err = parseHello(g.head)
	if errors.Is(err, errUnknownProtocol) {
		return g, err // the peer would not understand a refusal
	}
	r := &refusal{reason: reasonMalformed, text: "handshake: a malformed hello"}
	if err == nil {
		r = id.checkProtocol(g.hello)
	}
	differs := id.checkHello(g.hello)
	if r == nil && len(id.secret) > 0 {
		if differs == nil {
			named()
		}
		if r, err = id.challengePeer(ctx, t, &g); err != nil {
			return g, err
		}
	}
	if r == nil {
		r = differs
	}
	if r != nil {
		refuse(ctx, t, r)
		return g, r
	}
	return g, nil
}

// challengePeer asks the peer for its proof, and returns a refusal if the proof is wrong. A peer
// without the secret gets no HMAC against which it could try secrets.
func (id *identity) challengePeer(ctx context.Context, t *handshakeConn, g *greeting) (*refusal, error) {
	rand.Read(g.nonce[:])
	t.send(appendChallenge(nil, g.nonce), nil)
	head, _, err := t.recv(ctx, 0)
	if err != nil {
		return nil, err
	}
	mac, err := parseProof(head)
	want := proof(id.secret, labelDial, g.head, g.nonce, welcome{})
	if err != nil || !hmac.Equal(mac[:], want[:]) {
		return &refusal{reason: reasonSecret, text: "secret: the dialling rank has another secret than the accepting rank; give all ranks the same secret"}, nil
	}
	return nil, nil
}

// checkProtocol compares the fields without which the two ranks cannot do the handshake. It returns
// nil if they agree.
func (id *identity) checkProtocol(h hello) *refusal {
	no := func(why reason, field string, ours, theirs any) *refusal {
		return &refusal{reason: why, text: fmt.Sprintf("%s: the accepting rank has %v, the dialling rank has %v", field, ours, theirs)}
	}
	has := map[bool]string{true: "one", false: "none"}
	switch theirSecret := h.options&optionSecret != 0; {
	case h.version != version:
		r := &refusal{reason: reasonVersion, theirs: version}
		r.text = fmt.Sprintf("protocol version: the accepting rank speaks %d, the dialling rank %d; build all ranks from one version", version, h.version)
		return r
	case h.order != hostOrder():
		return no(reasonOrder, "byte order", orderName(hostOrder()), orderName(h.order))
	case theirSecret != (len(id.secret) > 0):
		return no(reasonSecret, "secret", has[len(id.secret) > 0], has[theirSecret])
	}
	return nil
}

// checkHello compares the other fields of a hello with this rank's identity, and returns nil if
// they agree. It reports the first field that differs. The fields are ordered so that a difference
// in one field explains differences in later fields. For example, a rank of another job usually has
// another size, too, but the user must look at the job. The text of a refusal names both values. In
// a job without a secret, a peer that does not know the job's name learns nothing about this rank.
func (id *identity) checkHello(h hello) *refusal {
	no := func(why reason, field string, ours, theirs any) *refusal {
		return &refusal{reason: why, text: fmt.Sprintf("%s: accepting rank %d has %v, dialling rank %d has %v",
			field, id.rank, ours, h.rank, theirs)}
	}
	sums := map[bool]string{true: "them on", false: "them off"}
	switch theirSums := h.options&optionSums != 0; {
	case h.job != id.job && len(id.secret) == 0:
		return &refusal{reason: reasonJob, text: fmt.Sprintf("job: the accepting rank has another job than %x…; set the same TUTTI_JOB on all ranks", h.job[:4])}
	case h.job != id.job:
		return no(reasonJob, "job", fmt.Sprintf("%x…", id.job[:4]), fmt.Sprintf("%x…", h.job[:4]))
	case h.incarnation != id.incarnation:
		r := no(reasonIncarnation, "incarnation", id.incarnation, h.incarnation)
		r.theirs = uint64(id.incarnation)
		return r
	case uint64(h.size) != uint64(id.size):
		return no(reasonSize, "world size", id.size, h.size)
	case h.rank >= h.size:
		return &refusal{reason: reasonRank, text: fmt.Sprintf("rank: got %d, want 0 to %d", h.rank, h.size-1)}
	case uint64(h.to) != uint64(id.rank):
		return &refusal{reason: reasonAddressee, text: fmt.Sprintf("rank: dialling rank %d looks for rank %d, and found rank %d", h.rank, h.to, id.rank)}
	case int(h.rank) == id.rank:
		return &refusal{reason: reasonRankInUse, text: fmt.Sprintf("rank: two processes are rank %d", id.rank)}
	case theirSums != id.sums:
		return no(reasonSums, "body checksums", sums[id.sums], sums[theirSums])
	}
	return nil
}

// orderName returns a byte order in words.
func orderName(b byte) string {
	switch b {
	case 'L':
		return "little endian"
	case 'B':
		return "big endian"
	}
	return fmt.Sprintf("unknown (%#x)", b)
}

// refuse sends r to the peer, and waits up to refusalTimeout until the peer has read it. Closing
// the Conn at once could discard the frame.
func refuse(ctx context.Context, t *handshakeConn, r *refusal) {
	ctx, cancel := context.WithTimeout(ctx, refusalTimeout)
	defer cancel()
	head, body := r.append(nil)
	t.finish(ctx, head, body)
}
