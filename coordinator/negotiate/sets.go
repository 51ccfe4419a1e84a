package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// join notes that a rank has run out of data.
func (l *Leader) join(rank int) {
	if l.leaving.Has(rank) || !l.joined.Add(rank) {
		l.liar(rank, "joins twice, or after it has left")
		return
	}
	l.last = rank
	l.checkAll()
	l.checkJoined()
}

// checkJoined ends a join when all ranks have joined: everything that was
// submitted is ready then, and is launched before.
func (l *Leader) checkJoined() {
	if l.ended || l.joined.Count() < l.cfg.Size {
		return
	}
	l.fence()
	l.down.Items = append(l.down.Items, Item{Kind: ItemJoined, Rank: l.last})
	l.joined.clear()
}

// fence launches all that is ready, whatever it costs, because what comes next
// must not overtake it.
func (l *Leader) fence() {
	l.urgent = true
	l.launch()
}

// leave notes that a rank submits nothing more.
func (l *Leader) leave(rank int) {
	if !l.leaving.Add(rank) {
		l.liar(rank, "leaves twice")
		return
	}
	l.checkAll()
}

func (l *Leader) checkAll() {
	for _, p := range l.all() {
		if p.live { // it may have failed with another of its group
			l.check(p)
		}
	}
}

// changeSets carries out a request that all ranks agree on.
func (l *Leader) changeSets(p *pending, t *Tensor) {
	if t.Kind == AddSet {
		l.addSet(t)
		return
	}
	id := uint32(0)
	if len(t.Shape) == 1 && t.Shape[0] > 0 {
		id = uint32(t.Shape[0])
	}
	if id == World || id == Registry || l.sets[id] == nil {
		l.fail(&fault.Error{Kind: fault.Misuse, Op: t.Call(), Err: fmt.Errorf("there is no process set %d", id)}, p.key)
		return
	}
	for _, o := range l.all() {
		if o.key.set == id && o.live {
			l.forsake(o, &fault.Error{Kind: fault.Misuse, Op: o.call(), Err: fmt.Errorf("its process set %s has been removed before all its ranks had submitted it", t.Name)})
		}
	}
	l.fence()
	delete(l.sets, id)
	for i := range l.slots {
		if s := &l.slots[i]; s.state == slotLive && s.meaning.Set == id {
			l.retire(i)
		}
	}
	l.down.Items = append(l.down.Items, Item{Kind: ItemUnset, ID: id, Name: t.Name})
}

func (l *Leader) addSet(t *Tensor) {
	if !validRanks(t.Shape, l.cfg.Size) {
		l.fail(&fault.Error{Kind: fault.Misuse, Op: t.Call(), Err: fmt.Errorf("ranks %v are not some of the %d, each once", t.Shape, l.cfg.Size)}, t.key())
		return
	}
	id := l.nextSet
	l.nextSet++
	l.sets[id] = newSet(slices.Clone(t.Shape))
	l.fence()
	l.down.Items = append(l.down.Items, Item{Kind: ItemSet, ID: id, Name: t.Name, Ranks: l.sets[id].ranks})
}
