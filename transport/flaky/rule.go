package flaky

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// A Moment is the point within a step at which a cut happens.
//
// For example, a rule cuts the Conn at a frame of 100 bytes:
//
//	Before   the other end gets no byte of it, and everything before it
//	Within   the other end gets 50 bytes and no completion
//	After    the other end gets all of it, and nothing after it
type Moment uint8

// The moments. A step without bytes (Expose, Share, Publish) has no middle, so Within means
// After there. A Chunk has arrived already when it is counted, so all three moments mean After.
const (
	Before Moment = iota + 1 // nothing of the frame arrives
	Within                   // the frame begins to arrive and never completes
	After                    // the frame arrives whole, and nothing arrives after it
)

// momentNames are the names that String prints and Parse reads.
var momentNames = [...]string{Before: "before", Within: "within", After: "after"}

// String returns the name of the moment in a rule.
func (m Moment) String() string {
	if int(m) >= len(momentNames) {
		return "never"
	}
	return momentNames[m]
}

// An action is the kind of fault that a rule injects.
type action uint8

const (
	cut action = iota + 1
	die
	delay
	corruptHead
	corruptBody
)

var actionNames = [...]string{cut: "cut", die: "die", delay: "delay", corruptHead: "corrupt head", corruptBody: "corrupt body"}

// A Rule says which fault happens at which step. It is a value and prints as one line, which Parse
// reads:
//
//	cut before 7                 the Conn of the 7th counted step
//	cut within 7 from 0 to 2     the 7th of the steps of node 0 towards node 2
//	die after 7 from 1           all Conns of the node that makes the step, now and later
//	delay 7 by 5ms               that frame, and the later frames on its Conn meanwhile
//	corrupt head 7               one bit of it
//	corrupt body 7               one bit of it; checksums detect it if they are on
//
// From and To limit which steps a rule counts. Without them it counts all steps of the Script, on
// all Conns and nodes.
type Rule struct {
	action   action
	moment   Moment // the moment of a cut or a death
	step     int    // from 1
	by       time.Duration
	from, to limit
}

// A limit restricts a rule to one node. The zero limit does not restrict the rule.
//
// The separate field set is needed because 0 is the number of a node, and because a rule may be
// limited to Unknown.
type limit struct {
	set  bool
	node int
}

// allows reports whether the limit lets the rule count steps of, or towards, this node.
func (l limit) allows(node int) bool { return !l.set || l.node == node }

// Cut fails the Conn of the k-th step at both ends. Steps count from 1.
func Cut(m Moment, k int) Rule { return Rule{action: cut, moment: m, step: k} }

// Die fails every Conn of the node that makes the k-th step, and refuses dials from and to the node
// from then on.
func Die(m Moment, k int) Rule { return Rule{action: die, moment: m, step: k} }

// Delay holds the k-th step, if it is a frame, for d. Later frames on its Conn wait for it.
func Delay(k int, d time.Duration) Rule { return Rule{action: delay, step: k, by: d} }

// CorruptHead flips one bit in the head of the k-th step, if it has one.
func CorruptHead(k int) Rule { return Rule{action: corruptHead, step: k} }

// CorruptBody flips one bit in the body of the k-th step, if it has one.
func CorruptBody(k int) Rule { return Rule{action: corruptBody, step: k} }

// From restricts the rule to steps of this node. Other steps do not count for k.
func (r Rule) From(node int) Rule { r.from = limit{true, node}; return r }

// To restricts the rule to steps towards this node. Other steps do not count for k.
func (r Rule) To(node int) Rule { r.to = limit{true, node}; return r }

// matches reports whether the rule counts the step.
func (r Rule) matches(st Step) bool { return r.from.allows(st.From) && r.to.allows(st.To) }

// String returns the line that Parse reads.
func (r Rule) String() string {
	if int(r.action) >= len(actionNames) || int(r.moment) >= len(momentNames) {
		return "no rule"
	}
	words := []string{actionNames[r.action]}
	if r.moment != 0 {
		words = append(words, momentNames[r.moment])
	}
	words = append(words, strconv.Itoa(r.step))
	if r.action == delay {
		words = append(words, "by", r.by.String())
	}
	if r.from.set {
		words = append(words, "from", strconv.Itoa(r.from.node))
	}
	if r.to.set {
		words = append(words, "to", strconv.Itoa(r.to.node))
	}
	return strings.Join(words, " ")
}

// Parse reads a rule in the form that String prints. For other input it returns fault.Misuse.
//
// A rule consists of an action with its moment, the number of the step, and then pairs of a word
// and a value in any order.
func Parse(line string) (Rule, error) {
	bad := func() (Rule, error) {
		return Rule{}, failure(fault.Misuse, "parse", fmt.Errorf("got %q, want a rule such as \"cut before 7\"", line))
	}
	words := strings.Fields(line)
	r, words := parseAction(words)
	if r.action == 0 || len(words)%2 == 0 {
		return bad()
	}
	k, err := strconv.Atoi(words[0])
	if err != nil || k < 1 {
		return bad()
	}
	r.step = k
	for words = words[1:]; len(words) > 0; words = words[2:] {
		if !r.parsePair(words[0], words[1]) {
			return bad()
		}
	}
	if (r.by != 0) != (r.action == delay) {
		return bad()
	}
	return r, nil
}

// parseAction reads the words before the step's number.
func parseAction(words []string) (Rule, []string) {
	if len(words) < 3 {
		return Rule{}, nil
	}
	for a := cut; a <= corruptBody; a++ {
		switch actionNames[a] {
		case words[0] + " " + words[1]:
			return Rule{action: a}, words[2:]
		case words[0]:
			if a == delay {
				return Rule{action: a}, words[1:]
			}
			for m := Before; m <= After; m++ {
				if momentNames[m] == words[1] {
					return Rule{action: a, moment: m}, words[2:]
				}
			}
		}
	}
	return Rule{}, nil
}

// parsePair reads one restriction, or a delay's length.
func (r *Rule) parsePair(key, value string) bool {
	if key == "by" {
		d, err := time.ParseDuration(value)
		r.by = d
		return err == nil && d > 0
	}
	n, err := strconv.Atoi(value)
	switch key {
	case "from":
		r.from = limit{true, n}
	case "to":
		r.to = limit{true, n}
	default:
		return false
	}
	return err == nil
}
