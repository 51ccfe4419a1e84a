/*
 * The agreement of package agreement for the model checker spin. All ranks have entered. A rank
 * may lose any other rank at any time, at most LOSSES times in all. That covers every partition
 * and every false suspicion within this bound. At most KILLS ranks are killed, and the news of a
 * death may reach a rank at any time after it. Every State that a rank has flooded may arrive at
 * any time, or never.
 *
 * Checked, over all interleavings within the bounds: two ranks that are alive never decide
 * different members. So there are never two live communicators of one epoch.
 *
 * Not checked is that each wait ends. The exploration in package agreement checks that, with the
 * Machine itself. Bits and calls are left out.
 *
 * -DBUG=1 to 3 plant bugs that must be found; see check.sh.
 */

#ifndef RANKS
#define RANKS 3
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef LOSSES
#define LOSSES 2
#endif
#ifndef BUG
#define BUG 0
#endif

#define ALL ((1 << RANKS) - 1)
#define MAX 12 /* States of one rank: the term, the vote, the known deaths and the end may change */
#define BIT(r) (1 << (r))

/* The States of each rank, oldest first. Their fields are packed, for small state vectors. */
byte votes[RANKS * MAX];   /* term | accepted << 3 | out << 6 */
byte content[RANKS * MAX]; /* members | side << 4 */
byte deaths[RANKS * MAX];
byte count[RANKS];             /* how many States the rank has flooded */
byte received[RANKS * RANKS];  /* at r * RANKS + q: the last State of rank q that rank r has */

byte lost[RANKS];
byte decided[RANKS]; /* the members; 0: not decided */
byte killed, kills = KILLS, losses = LOSSES;

/* Temporary values of one atomic step; 0 outside. */
byte term, accepted, members, side, dead, out;
byte view, leader, latest, voters, rest, n, q;
bool ok;

#define OWN(r) ((r) * MAX + count[r] - 1)
#define SEEN(r, p) ((r) == (p) -> OWN(r) : (p) * MAX + received[(r) * RANKS + (p)] - 1)
#define NONE(r, p) ((r) != (p) && received[(r) * RANKS + (p)] == 0)
#define TERM(i) (votes[i] & 7)
#define ACCEPTED(i) ((votes[i] >> 3) & 7)
#define OUT(i) (votes[i] >> 6)
#define MEMBERS(i) (content[i] & 15)
#define SIDE(i) (content[i] >> 4)

#define ONES(s) (((s) & 1) + (((s) >> 1) & 1) + (((s) >> 2) & 1) + (((s) >> 3) & 1))
#define MAJORITY(s) (2 * ONES(s) > RANKS || (2 * ONES(s) == RANKS && ((s) & 1)))
#if BUG == 1 /* members known to be dead do not count */
#define QUORUM(s) (2 * ONES(s) > RANKS - ONES(dead) || 2 * ONES(s) == RANKS - ONES(dead) && ((s) & 1))
#else
#define QUORUM(s) (MAJORITY(s) || (ALL & ~(s) & ~dead) == 0)
#endif

inline load(r) {
	term = TERM(OWN(r)); accepted = ACCEPTED(OWN(r)); out = OUT(OWN(r));
	members = MEMBERS(OWN(r)); side = SIDE(OWN(r)); dead = deaths[OWN(r)]
}

inline computeView(r) {
	view = ALL & ~lost[r];
	q = 0;
	do
	:: q < RANKS ->
		if
		:: q != r && !NONE(r, q) && OUT(SEEN(r, q)) -> view = view & ~BIT(q)
		:: else
		fi;
		q++
	:: else -> break
	od
}

/* react follows the leader, floods the State if it has changed, and decides. It follows load. */
inline react(r) {
	computeView(r);
	if
	:: !out ->
		leader = 0;
		do
		:: !(view & BIT(leader)) -> leader++
		:: else -> break
		od;
		term = leader + 1;
		if
		:: accepted == term
		:: accepted != term && leader == r && QUORUM(view) ->
			ok = true; latest = 0; n = 0; q = 0;
			do
			:: q < RANKS ->
				if
				:: (view & BIT(q)) && q != r && NONE(r, q) -> ok = false
				:: (view & BIT(q)) && q != r && !NONE(r, q) ->
					if
					:: TERM(SEEN(r, q)) != term -> ok = (BUG == 3 && TERM(SEEN(r, q)) != 0 && ok)
					:: else
					fi;
					if
					:: ACCEPTED(SEEN(r, q)) > latest ->
						latest = ACCEPTED(SEEN(r, q)); n = MEMBERS(SEEN(r, q))
					:: else
					fi
				:: (view & BIT(q)) && q == r ->
					if
					:: accepted > latest -> latest = accepted; n = members
					:: else
					fi
				:: else
				fi;
				q++
			:: else -> break
			od;
			if
			:: ok -> accepted = term; side = view; members = (latest > 0 && BUG != 2 -> n : view)
			:: else
			fi
		:: accepted != term && leader != r && !NONE(r, leader) ->
			if
			:: ACCEPTED(SEEN(r, leader)) == term && (SIDE(SEEN(r, leader)) & BIT(r)) ->
				accepted = term; members = MEMBERS(SEEN(r, leader)); side = SIDE(SEEN(r, leader))
			:: else
			fi
		:: else
		fi
	:: else
	fi;
	if
	:: votes[OWN(r)] != (term | accepted << 3 | out << 6) || content[OWN(r)] != (members | side << 4) ||
	   deaths[OWN(r)] != dead ->
		assert(count[r] < MAX);
		count[r]++;
		votes[OWN(r)] = term | accepted << 3 | out << 6;
		content[OWN(r)] = members | side << 4;
		deaths[OWN(r)] = dead
	:: else
	fi;
	if
	:: !decided[r] && !out && accepted ->
		voters = 0; q = 0;
		do
		:: q < RANKS ->
			if
			:: (side & BIT(q)) && !NONE(r, q) ->
				if
				:: ACCEPTED(SEEN(r, q)) == accepted -> voters = voters | BIT(q)
				:: else
				fi
			:: else
			fi;
			q++
		:: else -> break
		od;
		ok = MAJORITY(voters) || (BUG == 1 && QUORUM(voters));
		if
		:: !ok -> /* the last ones alive, who all know it */
			voters = voters & ~dead; rest = ALL & ~voters; ok = true; q = 0;
			do
			:: q < RANKS ->
				if
				:: (voters & BIT(q)) -> ok = ok && (rest & ~deaths[SEEN(r, q)]) == 0
				:: else
				fi;
				q++
			:: else -> break
			od
		:: else
		fi;
		if
		:: ok ->
			decided[r] = members;
			q = 0;
			do
			:: q < RANKS ->
				/* no two live communicators */
				assert((killed & BIT(q)) || !decided[q] || decided[q] == members);
				q++
			:: else -> break
			od
		:: else
		fi
	:: else
	fi;
	term = 0; accepted = 0; members = 0; side = 0; dead = 0; out = 0;
	view = 0; leader = 0; latest = 0; voters = 0; rest = 0; n = 0; q = 0; ok = false
}

/* learn notes the deaths in the State of rank p that has arrived last. */
inline learn(r, p) {
	rest = deaths[p * MAX + received[r * RANKS + p] - 1] & (ALL - BIT(r));
	rest = rest & ~dead;
	dead = dead | rest; lost[r] = lost[r] | rest; rest = 0
}

proctype Rank(byte me)
{
	byte from, k;
end:	do
	:: atomic { (!(killed & BIT(me)) && !OUT(OWN(me))) ->
		from = 0;
		do
		:: from < RANKS - 1 -> from++
		:: break
		od;
		if
		:: from != me && received[me * RANKS + from] < count[from] ->	/* a State arrives */
			k = received[me * RANKS + from] + 1;
			do
			:: k < count[from] -> k++
			:: break
			od;
			true;
			d_step { received[me * RANKS + from] = k; load(me); learn(me, from); react(me) }
		:: from != me && !(lost[me] & BIT(from)) && losses > 0 ->	/* loses a rank */
			d_step { losses--; lost[me] = lost[me] | BIT(from); load(me); react(me) }
		:: from != me && !(lost[me] & BIT(from)) && (killed & BIT(from)) ->
			d_step { lost[me] = lost[me] | BIT(from); load(me); react(me) }
		:: from != me && (killed & BIT(from)) && !(deaths[OWN(me)] & BIT(from)) ->	/* learns of a death */
			d_step { lost[me] = lost[me] | BIT(from); load(me); dead = dead | BIT(from); react(me) }
		:: from == me && !decided[me] ->	/* gives up without a quorum */
			d_step {
				load(me); computeView(me);
				if
				:: !QUORUM(view) -> out = 1
				:: else
				fi;
				react(me)
			}
		:: from == me && kills > 0 ->
			kills--; killed = killed | BIT(me); lost[me] = 0
		:: else
		fi;
		from = 0; k = 0 }
	od
}

init {
	atomic {
		byte r;
		for (r : 0 .. RANKS - 1) {
			count[r] = 1; votes[r * MAX] = 1
		}
		for (r : 0 .. RANKS - 1) { run Rank(r) }
		r = 0
	}
}
