/*
 * Groups and process sets of package negotiate for the model checker spin: ranks submit two names,
 * each by itself or both as a group, as each rank chooses. They wait for all of them before the next
 * step. With -DMISSING the last rank submits name 0 only, and the others a group. With -DSET a process set: name 1 belongs to some ranks only. Messages are in flight both ways.
 * With -DREFUSED the last rank refuses a call of both names in each step, and does not repeat it.
 * The cache, joins, and what negotiation.pml has of them, are left out, and so are sizes, fusion and time.
 *
 * Checked, over all interleavings within the bounds:
 *   soundness    a name runs only when all members have submitted it, all in a group or none; then a
 *                group runs as a whole; no name is submitted twice;
 *   no deadlock  every rank ends all its steps: nobody waits for what others never submit.
 *
 * -DBUG=1 to 5 plant bugs that must be found; see check.sh.
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
#define REFUSED 0 /* 1: the last rank refuses all its calls */
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

/* Response lists: kind and names. */
chan responseLists[RANKS] = [4 * RANKS * STEPS] of { mtype, byte };

byte ended;

/* refuse is what the last rank does in a step with -DREFUSED. */
inline refuse()
{
	if
	:: REFUSED && me == RANKS - 1 -> requestLists[me] ! 0, true
	:: else
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
	mtype kind;

	atomic {
		mine = (SET & (1 << me) -> BOTH : 1);
		left = mine;
#if MISSING
		if
		:: me == RANKS - 1 -> mine = 1; left = 1
		:: else
		fi
#endif
#if REFUSED
		if
		:: me == RANKS - 1 -> mine = 0; left = 0
		:: else
		fi
#endif
	}
end:	do	/* responses may still come when all steps have ended */
	:: atomic { (left & 1) && !(MISSING && left == BOTH) -> assert(!(unsent & 1)); left = left & ~1; inFlight = inFlight | 1; unsent = unsent | 1 }
	:: atomic { (left & 2) && !(MISSING && left == BOTH) -> assert(!(unsent & 2)); left = left & ~2; inFlight = inFlight | 2; unsent = unsent | 2 }
	:: atomic { left == BOTH ->	/* as a group, which is sent at once, with what is not sent yet */
		assert(unsent == 0);
		left = 0; inFlight = BOTH;
		requestLists[me] ! BOTH, true }
	:: atomic { unsent != 0 -> requestLists[me] ! unsent, false; unsent = 0 }
	:: atomic { launched != 0 ->	/* a bucket is executed, some time after the order has come */
		inFlight = inFlight & ~launched; launched = 0 }
	:: atomic { responseLists[me] ? kind, names ->
		if
		:: kind == RUN && (names & mine) ->
			assert((names & mine & ~inFlight) == 0 && (names & launched) == 0);	/* soundness */
			launched = launched | (names & mine)
		:: kind == RUN && !(names & mine)	/* it is not of this rank's sets */
		:: kind == FAIL ->
			if
			:: (unsent & names) && BUG != 3 -> requestLists[me] ! unsent, false; unsent = 0
			:: else
			fi;
			if
			:: BUG == 4 -> assert((names & launched) == 0); inFlight = inFlight & ~names
			:: else -> inFlight = inFlight & ~(names & ~launched)
			fi
		fi;
		names = 0 }
	:: atomic { left == 0 && inFlight == 0 && step < STEPS - 1 -> step++; left = mine; refuse() }
	:: atomic { left == 0 && inFlight == 0 && step == STEPS - 1 && unsent == 0 -> step++; ended++; refuse() }
	od
}

proctype Coordinator()
{
	byte submitted[NAMES]; /* ranks that have submitted a name; 0: it is not pending */
	byte grouped[NAMES];   /* of these, those that have submitted it in a group */
	byte failed;           /* names that have failed for good */
	bool group;            /* the group has failed for good */
	byte refusals;         /* calls that the last rank has refused and that no call of the others has met */
	byte r, names, i, now, ready;
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
				:: now & (1 << i) -> submitted[i] = 0; grouped[i] = 0
				:: else
				fi
			}
			for (i : 0 .. RANKS - 1) { responseLists[i] ! FAIL, now }
		:: else
		fi;
		if	/* receiveRefusal */
		:: names == 0 && BUG == 5 -> refusals = 1
		:: names == 0 && BUG != 5 -> refusals++
		:: else
		fi;
		now = 0;
		for (i : 0 .. 1) {	/* failRefused; time is left out: the rank does not repeat the call */
			if
			:: refusals > 0 && submitted[i] == ALL - (1 << (RANKS - 1)) -> now = now | (1 << i)
			:: else
			fi
		}
		if	/* a refusal is for both names */
		:: now == BOTH ->
			refusals--;
			for (i : 0 .. 1) { submitted[i] = 0; grouped[i] = 0 }
			for (i : 0 .. RANKS - 1) { responseLists[i] ! FAIL, BOTH }
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
					submitted[i] = 0; grouped[i] = 0
				:: else
				fi
			}
			for (i : 0 .. RANKS - 1) { responseLists[i] ! RUN, ready }
		:: else
		fi;
		r = 0; names = 0; i = 0; now = 0; ready = 0; g = false }
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
