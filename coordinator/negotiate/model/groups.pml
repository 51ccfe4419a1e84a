/*
 * Groups and process sets of package negotiate for the model checker spin: ranks submit two names,
 * each by itself or both as a group, as each rank chooses. They wait for all of them before the next
 * step. With -DMISSING the last rank submits name 0 only, and the others a group. With -DSET a process set: name 1 belongs to some ranks only. Messages are in flight both ways.
 * With -DREFUSED the last rank refuses a call of both names in each step, or makes valid calls.
 * The cache, joins, and what negotiation.pml has of them, are left out, and so are sizes, fusion and time.
 *
 * Checked, over all interleavings within the bounds:
 *   soundness    a name runs only when all members have submitted it, all in a group or none; then a
 *                group runs as a whole; no name is submitted twice;
 *   pairing      the names that run are of the same step on all ranks, also after refused calls;
 *   no deadlock  every rank ends all its steps: nobody waits for what others never submit.
 *
 * -DBUG=1 to 7 plant bugs that must be found; see check.sh.
 */

#ifndef RANKS
#define RANKS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef SET
#define SET ALL /* the ranks that have name 1 */
#endif
#ifndef MISSING
#define MISSING 0 /* 1: the last rank submits name 0 only, and the others a group */
#endif
#ifndef REFUSED
#define REFUSED 0 /* 1: the last rank may refuse its calls */
#endif
#ifndef BUG
#define BUG 0
#endif

#define ALL ((1 << RANKS) - 1)
#define NAMES 2
#define BOTH 3 /* names 0 and 1 */

mtype = { RUN, FAIL };

/* Request lists: names, and whether they are a group. A step has at most two. No names: a refused call. */
chan requestLists[RANKS] = [2 * STEPS + 2] of { byte, bool };

/* Response lists: kind, names, and the ranks whose submissions fail. */
chan responseLists[RANKS] = [4 * RANKS * STEPS] of { mtype, byte, byte };

byte ended;
byte steps[RANKS * NAMES]; /* the step in which a rank has submitted a name last */

/* beginStep begins a step. With -DREFUSED the last rank may refuse its call instead. */
inline beginStep()
{
	left = mine;
	if
	:: REFUSED && me == RANKS - 1 -> requestLists[me] ! 0, true; left = 0
	:: true
	fi
}

proctype Worker(byte me)
{
	byte mine;     /* names that this rank submits */
	byte inFlight; /* submitted, and neither executed nor failed */
	byte launched; /* in flight, and in a bucket */
	byte left;     /* names to submit in this step */
	byte unsent;   /* submitted alone, and not sent yet */
	byte step, names;
	byte ranks;
	mtype kind;

	atomic {
		mine = (SET & (1 << me) -> BOTH : 1);
#if MISSING
		if
		:: me == RANKS - 1 -> mine = 1
		:: else
		fi
#endif
		beginStep()
	}
end:	do	/* responses may still come when all steps have ended */
	:: atomic { (left & 1) && !(MISSING && left == BOTH) -> assert(!(unsent & 1)); left = left & ~1; inFlight = inFlight | 1; unsent = unsent | 1; steps[me * NAMES] = step }
	:: atomic { (left & 2) && !(MISSING && left == BOTH) -> assert(!(unsent & 2)); left = left & ~2; inFlight = inFlight | 2; unsent = unsent | 2; steps[me * NAMES + 1] = step }
	:: atomic { left == BOTH ->	/* as a group, which is sent at once, with what is not sent yet */
		assert(unsent == 0);
		left = 0; inFlight = BOTH; steps[me * NAMES] = step; steps[me * NAMES + 1] = step;
		requestLists[me] ! BOTH, true }
	:: atomic { unsent != 0 -> requestLists[me] ! unsent, false; unsent = 0 }
	:: atomic { launched != 0 ->	/* a bucket is executed, some time after the order has come */
		inFlight = inFlight & ~launched; launched = 0 }
	:: atomic { responseLists[me] ? kind, names, ranks ->
		if
		:: kind == RUN && (names & mine) ->
			assert((names & mine & ~inFlight) == 0 && (names & launched) == 0);	/* soundness */
			launched = launched | (names & mine)
		:: kind == RUN && !(names & mine)	/* it is not of this rank's sets */
		:: kind == FAIL && ranks != 0 && !(ranks & (1 << me)) && BUG != 7	/* it is of other ranks */
		:: kind == FAIL && (ranks == 0 || (ranks & (1 << me)) || BUG == 7) ->
			if
			:: (unsent & names) && BUG != 3 -> requestLists[me] ! unsent, false; unsent = 0
			:: else
			fi;
			if
			:: BUG == 4 -> assert((names & launched) == 0); inFlight = inFlight & ~names
			:: else -> inFlight = inFlight & ~(names & ~launched)
			fi
		fi;
		names = 0; ranks = 0 }
	:: atomic { left == 0 && inFlight == 0 && step < STEPS - 1 -> step++; beginStep() }
	:: atomic { left == 0 && inFlight == 0 && step == STEPS - 1 && unsent == 0 -> step++; ended++ }
	od
}

proctype Coordinator()
{
	byte submitted[NAMES]; /* ranks that have submitted a name; 0: it is not pending */
	byte grouped[NAMES];   /* of these, those that have submitted it in a group */
	byte failed;           /* names that have failed for good */
	bool group;            /* the group has failed for good */
	byte made[NAMES * STEPS]; /* of each refused call, the ranks that have made it */
	byte count[NAMES];     /* refused calls that some ranks have not made */
	byte r, names, i, j, now, late, ready;
	bool g;

end:	do
	:: atomic {
		if
		:: requestLists[0] ? names, g -> r = 0
		:: requestLists[1] ? names, g -> r = 1
#if RANKS > 2
		:: requestLists[2] ? names, g -> r = 2
#endif
		fi;
		now = 0;
		for (i : 0 .. 1) {
			if
			:: names & (1 << i) ->
				j = 0;	/* isRefused */
				do
				:: j < count[i] && (made[i * STEPS + j] & (1 << r)) -> j++
				:: else -> break
				od;
				if
				:: j < count[i] && !(failed & (1 << i)) && !(g && group) ->
					made[i * STEPS + j] = made[i * STEPS + j] | (1 << r);
					late = late | (1 << i);
					if
					:: BUG == 6 -> count[1 - i] = 0
					:: else
					fi;
					if	/* dropComplete: a rank makes its calls in order, so the first call is complete first */
					:: made[i * STEPS] == ALL ->
						count[i]--;
						for (j : 0 .. STEPS - 2) { made[i * STEPS + j] = made[i * STEPS + j + 1] }
					:: else
					fi
				:: else ->
					assert(!(submitted[i] & (1 << r)));
					submitted[i] = submitted[i] | (1 << r);
					if
					:: g -> grouped[i] = grouped[i] | (1 << r)
					:: else
					fi;
					if	/* checkGroup */
					:: grouped[i] != 0 && grouped[i] != submitted[i] -> now = now | (1 << i)
					:: BUG != 1 && (failed & (1 << i)) -> now = now | (1 << i)
					:: BUG != 1 && g && group -> now = now | (1 << i)
					:: else
					fi
				fi
			:: else
			fi
		}
		if	/* failWithGroup: the other name of a group fails, too */
		:: BUG != 2 && now != 0 && (((now & 1) && grouped[0]) || ((now & 2) && grouped[1])) ->
			now = now | (submitted[0] != 0 -> 1 : 0) | (submitted[1] != 0 -> 2 : 0);
			group = true
		:: else
		fi;
		if
		:: now != 0 ->
			failed = failed | now;
			for (i : 0 .. 1) {
				if
				:: now & (1 << i) -> submitted[i] = 0; grouped[i] = 0; count[i] = 0
				:: else
				fi
			}
			for (i : 0 .. RANKS - 1) { responseLists[i] ! FAIL, now, 0 }
		:: else
		fi;
		now = 0;
		if	/* failLate */
		:: late != 0 ->
			for (i : 0 .. RANKS - 1) { responseLists[i] ! FAIL, late, 1 << r }
			if	/* a group that shares a tensor with one that has failed for good */
			:: g && group -> failed = failed | late
			:: else
			fi;
			for (i : 0 .. 1) {	/* the other name of the group */
				if
				:: g && !(late & (1 << i)) && (submitted[i] & (1 << r)) -> now = now | (1 << i)
				:: else
				fi
			}
		:: else
		fi;
		for (i : 0 .. 1) {
			if	/* recordRefusal */
			:: names == 0 && !(failed & (1 << i)) && !(BUG == 5 && count[i] > 0) ->
				made[i * STEPS + count[i]] = submitted[i] | (1 << r);
				count[i]++;
				now = now | (submitted[i] != 0 -> 1 << i : 0)
			:: else
			fi
		}
		if	/* failWithGroup: both are recorded, so the other name of a group is in now as well */
		:: now != 0 ->
			for (i : 0 .. 1) {
				if
				:: now & (1 << i) ->
					for (j : 0 .. RANKS - 1) { responseLists[j] ! FAIL, 1 << i, submitted[i] }
					submitted[i] = 0; grouped[i] = 0
				:: else
				fi
			}
		:: else
		fi;
		ready = (submitted[0] == ALL -> 1 : 0) | (submitted[1] == SET && SET != 0 -> 2 : 0);
		if	/* resolve: a group waits for all of it */
		:: ready != BOTH && ((ready & 1) && grouped[0]) -> ready = ready & ~1
		:: ready != BOTH && ((ready & 2) && grouped[1]) -> ready = ready & ~2
		:: else
		fi;
		if
		:: ready != 0 ->
			for (i : 0 .. 1) {
				if
				:: ready & (1 << i) ->
					assert(grouped[i] == 0 || grouped[i] == submitted[i]);
					for (j : 1 .. RANKS - 1) {
						assert(!REFUSED || steps[j * NAMES + i] == steps[i])	/* pairing */
					}
					submitted[i] = 0; grouped[i] = 0
				:: else
				fi
			}
			for (i : 0 .. RANKS - 1) { responseLists[i] ! RUN, ready, 0 }
		:: else
		fi;
		r = 0; names = 0; i = 0; j = 0; now = 0; late = 0; ready = 0; g = false }
	od
}

init {
	atomic {
		run Coordinator();
		run Worker(0);
		run Worker(1);
#if RANKS > 2
		run Worker(2);
#endif
	}
	ended == RANKS	/* reached in every run, or it is a deadlock */
}
