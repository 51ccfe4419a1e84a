/* The protocol of package verbs, in Promela: two ends of one queue pair. Each sends a few
 * frames of any kind while the other does, and sleeps when there is nothing to do. It is
 * the flow of flow.go with small numbers, and Arm of conn.go. spin visits every order of
 * events and finds:
 *
 *   - a work request that meets no posted receive (the assertion in TELL),
 *   - a deadlock, or a lost wake-up: the ends do not reach their end,
 *   - ends that answer each other forever: a cycle,
 *   - a write into memory that was released because it counted as drained.
 *
 * Each of these is found when the rule against it is left out:
 *
 * broken: -DLASTCREDIT -DONEACK -DNORECHECK -DNOBUDGET -DLATEFRAMES
 *
 * The kind of a frame is chosen when it begins, and never changed: else an end that waits
 * for credits could always go on with a kind that needs none, and no deadlock of frames
 * would be found. -DLATEFRAMES, where frames wait for more credits than ACKs grant, is
 * such a deadlock.
 *
 * At this depth credits are granted so often that no ring fills up before; testdata/ring.flow
 * tests that half a ring is reason enough for an ACK. Names here: owed is ungranted, lying
 * the used bytes of the peer's ring, quiet drained, again renewed, landed inRing.
 */

#ifndef DEPTH
#define DEPTH  3	/* receives posted by each end */
#endif
#ifndef FRAMES
#define FRAMES 2	/* that each end sends */
#endif
#define STRIP  4	/* bodies that a strip holds */
#define BUDGET 1	/* frames that fill exposed memory */

mtype = { ACK, IDLE, REQUEST, RESPONSE, AGAIN, AGREED, WRITE, LANDED, PART, LAST, DIRECT };
mtype = { resting, fresh, keeping, landed, asked, renewing, writing };

chan q[2] = [DEPTH] of { mtype, byte, byte };	/* to end i: what, credit, freed */

byte credits[2] = DEPTH, owed[2], freed[2], lying[2];	/* lying: used of the peer's strip */
bool armed[2], rung[2];
byte finished[2], arrived[2];	/* frames that end i is done with; that came to it */
byte budget[2] = BUDGET;	/* what end i may write into the peer's memory yet */
bool idle[2], shut[2], quiet[2], again[2];	/* idle: end i has heard; shut: its own memory is hidden */
byte total[2];

#ifdef LASTCREDIT
#define MAYTELL (credits[me] > 0)
#define MAYWRITE (credits[me] > 0)
#else
#define MAYTELL (credits[me] > 1 || (credits[me] == 1 && owed[me] > 0))
#define MAYWRITE (credits[me] > 1)
#endif
#ifdef LATEFRAMES
#define MAYBEGIN (credits[me] > 2)
#define MAYFILL (credits[me] > 2)
#else
#define MAYBEGIN MAYTELL
#define MAYFILL MAYWRITE
#endif
#ifdef ONEACK
#define ACKDUE (owed[me] >= 1)
#else
#define ACKDUE (owed[me] >= 2)
#endif
#define FREEDUE (freed[me] >= STRIP / 2)

/* A work takes one of the peer's receives; a message takes credit along. */
inline put(what, c, f) {
	assert(nfull(q[1 - me]));
	q[1 - me]!what, c, f;
	credits[me]--;
	if
	:: armed[1 - me] -> armed[1 - me] = false; rung[1 - me] = true
	:: else
	fi
}
inline tell(what) { put(what, owed[me], freed[me]); owed[me] = 0; freed[me] = 0 }

/* All frames are done with, and this end has nothing more to say. */
#define CANTALK ((note != 0 || hide != 0 || ACKDUE || FREEDUE) && MAYTELL)
#define OVER (finished[0] == FRAMES && finished[1] == FRAMES)

proctype End(byte me) {
	mtype phase = resting, what, note = 0, hide = 0;
	byte c, f, left = FRAMES, parts;
	bool strip = false, asking = false, moved;

	do
	:: OVER && empty(q[me]) && !(CANTALK) -> break
	:: atomic {	/* take an arrival, and post its receive again */
		nempty(q[me]) ->
		q[me]?what, c, f;
		credits[me] = credits[me] + c;
		lying[me] = lying[me] - f;
		if
		:: what == REQUEST -> assert(!asking); note = RESPONSE
		:: what == RESPONSE -> assert(phase == asked); phase = writing; parts = 2; strip = true
		:: what == WRITE || what == LAST -> arrived[me]++
		:: what == LANDED -> arrived[me]++; freed[me]++
		:: what == DIRECT ->
			assert(!quiet[me]);
			arrived[me]++;
			total[me]++
		:: what == AGAIN ->
			if
			:: !shut[me] -> again[me] = true; total[me] = 0; note = AGREED
			:: else
			fi
		:: what == AGREED -> assert(phase == renewing); budget[me] = BUDGET; phase = fresh
		:: what == IDLE -> idle[me] = true
		:: else	/* ACK, PART */
		fi;
		owed[me]++;
		what = 0; c = 0; f = 0
	}
	:: atomic {	/* hide the memory, at any time */
		!shut[me] ->
		shut[me] = true;
		quiet[me] = (total[me] == BUDGET && !again[me]);
		hide = IDLE
	}
	:: atomic {	/* post one thing, or go to sleep */
		empty(q[me]) && (!(OVER) || CANTALK) ->
		moved = true;
		if
		:: phase == resting && left > 0 -> left--; phase = fresh
		:: phase == resting && left > 0 -> left--; phase = keeping	/* for kept memory */
		:: else
		fi;
		if
		:: note != 0 && MAYTELL -> tell(note); note = 0
		:: note == 0 && hide != 0 && MAYTELL -> tell(hide); hide = 0
		:: note != 0 && !(MAYTELL) -> moved = false
		:: note == 0 && hide != 0 && !(MAYTELL) -> moved = false
		:: note == 0 && hide == 0 ->
			if
			:: phase == fresh && MAYBEGIN -> tell(WRITE); phase = resting; finished[me]++
			:: phase == fresh && MAYBEGIN && !strip -> tell(REQUEST); phase = asked
			:: phase == fresh && MAYBEGIN && strip && lying[me] < STRIP -> lying[me]++; phase = landed
			:: phase == landed && MAYTELL -> tell(LANDED); phase = resting; finished[me]++
			:: phase == keeping -> phase = resting; finished[me]++	/* nobody hears of it, and it takes no credit */
			:: phase == fresh && idle[me] -> phase = resting; finished[me]++	/* an error, above */
			:: phase == renewing && idle[me] -> phase = resting; finished[me]++
#ifdef NOBUDGET
			:: phase == fresh && !idle[me] && MAYFILL ->
#else
			:: phase == fresh && !idle[me] && budget[me] == 0 && MAYBEGIN -> tell(AGAIN); phase = renewing
			:: phase == fresh && !idle[me] && budget[me] > 0 && MAYFILL ->
				budget[me]--;
#endif
				put(DIRECT, 0, 0); phase = resting; finished[me]++
			:: phase == writing && MAYWRITE && parts == 2 -> put(PART, 0, 0); parts = 1
			:: phase == writing && MAYWRITE && parts == 1 -> put(LAST, 0, 0); parts = 0; phase = resting; finished[me]++
			:: else ->
				if
				:: (ACKDUE || FREEDUE) && MAYTELL -> tell(ACK)
				:: else -> moved = false
				fi
			fi
		fi
	   }
	   if
	   :: moved -> moved = false
	   :: else ->
		armed[me] = true;
#ifndef NORECHECK
		if
		:: nempty(q[me]) -> armed[me] = false
		:: empty(q[me]) ->
			if
			:: rung[me] -> skip
			:: OVER -> skip
			fi
		fi;
#else
		if
		:: rung[me] -> skip
		:: OVER -> skip
		fi;
#endif
		rung[me] = false
	   fi
	od
}

init { atomic { run End(0); run End(1) } }
