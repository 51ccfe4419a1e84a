package comm

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/tutti-go/tutti/comm/agreement"
	"github.com/tutti-go/tutti/mesh"
)

// fullNotice returns a notice with every field set.
func fullNotice(size int) *agreementNotice {
	all := agreement.All(size)
	return &agreementNotice{comm: 1 << 60, number: 7, ask: []int{0, 2}, state: agreement.State{
		Version: 5, Calls: agreement.Shrink, Bits: 1<<63 | 1, Term: size, Accepted: 1, Out: true, Dead: all.Minus(all),
		Proposal: agreement.Proposal{Side: all, Members: all.Without(1), Bits: 9, Calls: agreement.Agree | agreement.Shrink},
	}}
}

func TestANoticeOfAnAgreementArrivesAsItWasSent(t *testing.T) {
	for _, size := range []int{3, 8, 9, maxAgreement} {
		sent := fullNotice(size)
		got, ok := parseAgreement(sent.append(nil, size), size)
		if !ok || !reflect.DeepEqual(got, *sent) {
			t.Errorf("%d members: got %v, %+v, want %+v", size, ok, got, *sent)
		}
	}
	n := fullNotice(maxAgreement)
	n.ask = make([]int, maxQuestions)
	if got := len(n.append(nil, maxAgreement)); got > mesh.MaxFlood {
		t.Errorf("the largest notice has %d bytes, want at most %d", got, mesh.MaxFlood)
	}
}

func TestAMalformedNoticeOfAnAgreementIsRefused(t *testing.T) {
	good := fullNotice(9).append(nil, 9)
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	for name, b := range map[string][]byte{
		"empty":                  nil,
		"cut short":              good[:len(good)-1],
		"too long":               append(bytes.Clone(good), 0),
		"unknown flag":           change(16, 2),
		"too many count":         change(19, maxQuestions+1),
		"term beyond the ranks":  change(20, 10),
		"accepted beyond a term": change(24, 10),
		"a member that is none":  change(len(good)-1, 2),
	} {
		if n, ok := parseAgreement(b, 9); ok {
			t.Errorf("%s: got %+v, want a refusal", name, n)
		}
	}
}

func FuzzParseAgreement(f *testing.F) {
	f.Add(fullNotice(9).append(nil, 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, ok := parseAgreement(b, 9)
		if again := n.append(nil, 9); ok && !bytes.Equal(again, b) {
			t.Errorf("got %x from %x", again, b)
		}
	})
}
