/*
 * The negotiation protocol of package negotiate, for spin: a leader, which is told
 * what each rank has submitted and tells all ranks one order, and the ranks, which
 * submit names in any order, step by step, run out of data after a number of steps
 * of their own, join, and leave.
 *
 * What is modelled is what could go wrong between machines: messages on their way
 * in both directions, numbers of the cache that are given to another name while
 * bits with the old meaning are under way, submissions that wait to be sent while
 * their number is taken away, joins at any time. What is left out has no part in
 * that: sizes, fusion, groups, process sets, errors, time. Carrying out takes no
 * time. The age by which Leader.evict chooses is any age.
 *
 * Checked, over all interleavings within the bounds:
 *   agreement   every rank runs the same names in the same order;
 *   soundness   no rank runs what it has not submitted, unless it has joined; no
 *               bit means nothing, no name is told twice, no message is skipped;
 *   no deadlock all ranks end by "bye", with everything carried out.
 *
 * -DBUG=1 to 4 plant bugs that must be found; see check.sh.
 */

#ifndef RANKS
#define RANKS 2
#endif
#ifndef NAMES
#define NAMES 2
#endif
#ifndef CACHE
#define CACHE 1
#endif
#ifndef STEPS
#define STEPS 2 /* of a rank, at most; at least 1 */
#endif
#ifndef BUG
#define BUG 0
#endif

#define NONE 255
#define ALL  ((1 << RANKS) - 1)
#define MOST (NAMES * STEPS) /* runs */

mtype = { RUN, JOINED, BYE };

/* Up: acknowledged message, bits by number, requests by name, joins, leaves. */
chan up[RANKS] = [NAMES + 2] of { byte, byte, byte, bool, bool };

/* Down: its number, kind, number of the tensor or NONE for this launch only, its
   name, whether it gets that meaning now, absent ranks, number that is over. */
chan down[RANKS] = [MOST + 2] of { byte, mtype, byte, byte, bool, byte, byte };

/* For the proof only: the order as the leader has told it. */
byte order[MOST];
byte told;

/* What is left, for the end. */
byte ended;

proctype Rank(byte me)
{
	byte num[NAMES];     /* number of a name; NONE */
	bool agreed[NAMES];  /* and that number means what was last submitted */
	byte entry[CACHE];   /* name of a number; NONE */
	bool under[NAMES];   /* submitted, and not carried out */
	byte count[NAMES];   /* times submitted */
	byte bits, requests; /* not sent yet */
	bool joining, over, left;
	byte limit, ran, ack, seq, id, name, absent, gone, i;
	bool means;
	mtype kind;

	atomic {
		for (i : 0 .. NAMES - 1) { num[i] = NONE }
		for (i : 0 .. CACHE - 1) { entry[i] = NONE }
		select (limit : 1 .. STEPS);
		i = 0
	}
	do
	:: atomic { !joining && !over ->	/* submit some name */
		select (i : 0 .. NAMES - 1);
		if
		:: !under[i] && count[i] < limit ->
			under[i] = true;
			count[i]++;
			if
			:: num[i] != NONE && agreed[i] -> bits = bits | (1 << num[i])
			:: else -> agreed[i] = false; requests = requests | (1 << i)
			fi
		:: else
		fi;
		i = 0 }
	:: atomic { bits != 0 || requests != 0 ->	/* a cycle is over */
		up[me] ! ack, bits, requests, false, false;
		bits = 0; requests = 0 }
	:: atomic { !joining && !over ->	/* nothing more to submit */
		for (i : 0 .. NAMES - 1) {
			if
			:: count[i] < limit -> break
			:: else
			fi
		}
		if
		:: i == NAMES ->
			up[me] ! ack, bits, requests, true, false;
			bits = 0; requests = 0; joining = true
		:: else
		fi;
		i = 0 }
	:: atomic { over && !left ->
		up[me] ! ack, 0, 0, false, true;
		left = true }
	:: atomic { down[me] ? seq, kind, id, name, means, absent, gone ->
		assert(seq == ack + 1);
		ack = seq;
		if
		:: kind == RUN ->
			if	/* Member.mean */
			:: id == NONE -> agreed[name] = false
			:: id != NONE && means ->
				if
				:: entry[id] != NONE && entry[id] != name -> num[entry[id]] = NONE; agreed[entry[id]] = false
				:: else
				fi;
				entry[id] = name;
				num[name] = id;
				agreed[name] = under[name]
			:: else ->
				assert(entry[id] != NONE);	/* it means something */
				name = entry[id]
			fi;
			assert(ran < told && order[ran] == name);	/* agreement */
			ran++;
			if
			:: absent & (1 << me) -> assert(!under[name])
			:: else -> assert(under[name]); under[name] = false	/* soundness */
			fi
		:: kind == JOINED -> joining = false; over = true
		:: kind == BYE -> assert(left && ran == told && bits == 0 && requests == 0)
		fi;
		if	/* Member.forget */
		:: gone != NONE && entry[gone] != NONE ->
			name = entry[gone];
			entry[gone] = NONE;
			if
			:: under[name] && (bits & (1 << gone)) ->	/* it has not gone out; in full it says the same */
				bits = bits & ~(1 << gone);
				requests = requests | (1 << name)
			:: else
			fi;
			num[name] = NONE;
			agreed[name] = false
		:: else
		fi;
		seq = 0; id = 0; name = 0; means = false; absent = 0; gone = 0;	/* fewer states */
		if
		:: kind == BYE -> ended++; break
		:: else
		fi }
	od
}

#define FREE 0
#define LIVE 1
#define OVER 2

proctype Leader()
{
	byte got[NAMES];     /* ranks that have submitted a name; 0: it is not pending */
	bool infull[NAMES];    /* somebody sent it in full */
	byte slotOf[NAMES];  /* the number that it had when it became pending; NONE */
	byte cached[NAMES];  /* its number; NONE */
	byte meaning[CACHE], state[CACHE], overAt[CACHE];
	byte ack[RANKS];
	byte joining, leaving, seq;
	byte r, a, bits, requests, i, id, absent, gone, enough;
	bool joins, leaves, means;

	atomic {
		for (i : 0 .. NAMES - 1) { cached[i] = NONE; slotOf[i] = NONE }
		i = 0
	}
	do
	:: atomic {
		if
		:: up[0] ? a, bits, requests, joins, leaves -> r = 0
		:: up[1] ? a, bits, requests, joins, leaves -> r = 1
#if RANKS > 2
		:: up[2] ? a, bits, requests, joins, leaves -> r = 2
#endif
		fi;
		assert(a >= ack[r] && a <= seq);
		ack[r] = a;
		for (id : 0 .. CACHE - 1) {	/* hearBit */
			if
			:: BUG == 4 && (bits & (1 << id)) && state[id] == OVER	/* it is taken for nothing */
			:: (BUG != 4 || state[id] != OVER) && (bits & (1 << id)) ->
				assert(state[id] != FREE);
				i = meaning[id];
				if
				:: got[i] == 0 -> slotOf[i] = cached[i]; infull[i] = false
				:: else
				fi;
				assert(!(got[i] & (1 << r)));
				got[i] = got[i] | (1 << r);
				infull[i] = infull[i] || state[id] != LIVE
			:: else
			fi
		}
		for (i : 0 .. NAMES - 1) {	/* hearRequest */
			if
			:: requests & (1 << i) ->
				if
				:: got[i] == 0 -> slotOf[i] = cached[i]
				:: else
				fi;
				assert(!(got[i] & (1 << r)) && !(joining & (1 << r)));
				got[i] = got[i] | (1 << r);
				infull[i] = true
			:: else
			fi
		}
		if
		:: joins -> joining = joining | (1 << r)
		:: leaves -> leaving = leaving | (1 << r)
		:: else
		fi;
		for (i : 0 .. NAMES - 1) {	/* check, number, launch */
			enough = got[i] | joining;
			if
			:: BUG == 2 && got[i] != 0 -> enough = enough | 1	/* rank 0 is not waited for */
			:: BUG == 3 && joins -> enough = 0	/* who waits for the rank that joins is forgotten */
			:: else
			fi;
			if
			:: got[i] != 0 && enough == ALL ->
				absent = joining & ~got[i];
				gone = NONE;
				means = false;
				if
				:: slotOf[i] != NONE && state[slotOf[i]] == LIVE && !infull[i] -> id = slotOf[i]
				:: (slotOf[i] == NONE || state[slotOf[i]] != LIVE || infull[i]) && absent != 0 -> id = NONE
				:: (slotOf[i] == NONE || state[slotOf[i]] != LIVE || infull[i]) && absent == 0 ->
					id = slotOf[i];
					if
					:: id == NONE ->	/* takeSlot */
						for (a : 0 .. CACHE - 1) {
							if
							:: state[a] == FREE -> id = a; break
							:: else
							fi
						}
					:: else
					fi;
					if
					:: id != NONE ->
						means = true;
						meaning[id] = i;
						state[id] = LIVE;
						cached[i] = id
					:: else ->	/* evict one, or none is old enough */
						select (a : 0 .. CACHE);
						if
						:: a < CACHE ->
							if
							:: state[a] == LIVE && got[meaning[a]] == 0 ->
								gone = a;
								cached[meaning[a]] = NONE;
								state[a] = OVER;
								overAt[a] = seq + 1;
								if
								:: BUG == 1 -> state[a] = FREE	/* not all know that it is over */
								:: else
								fi
							:: else
							fi
						:: else
						fi
					fi
				fi;
				order[told] = i;
				told++;
				seq++;
				for (a : 0 .. RANKS - 1) { down[a] ! seq, RUN, id, i, means, absent, gone }
				got[i] = 0; infull[i] = false; slotOf[i] = NONE
			:: else
			fi
		}
		if
		:: joining == ALL ->
			for (i : 0 .. NAMES - 1) { assert(got[i] == 0) }	/* all was ready, and launched before */
			seq++;
			for (a : 0 .. RANKS - 1) { down[a] ! seq, JOINED, NONE, 0, false, 0, NONE }
			joining = 0
		:: else
		fi;
		for (id : 0 .. CACHE - 1) {	/* drain */
			if
			:: state[id] == OVER ->
				for (a : 0 .. RANKS - 1) {
					if
					:: ack[a] < overAt[id] -> break
					:: else
					fi
				}
				if
				:: a == RANKS -> state[id] = FREE; overAt[id] = 0; meaning[id] = 0
				:: else
				fi
			:: else
			fi
		}
		a = 0; bits = 0; requests = 0; i = 0; id = 0; absent = 0; gone = 0; enough = 0; r = 0;
		means = false; joins = false;
		if
		:: leaving == ALL ->
			seq++;
			for (a : 0 .. RANKS - 1) { down[a] ! seq, BYE, NONE, 0, false, 0, NONE }
			break
		:: else -> leaves = false
		fi }
	od
}

init {
	atomic {
		run Leader();
		run Rank(0);
		run Rank(1);
#if RANKS > 2
		run Rank(2);
#endif
	}
	ended == RANKS	/* reached in every run, or it is a deadlock */
}
