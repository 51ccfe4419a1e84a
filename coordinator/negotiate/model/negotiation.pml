/*
 * The protocol of package negotiate for the model checker spin: a coordinator, which receives what
 * each rank has submitted and sends all ranks one order, and the workers of the ranks. These submit
 * names in any order, step by step, run out of data after a number of steps of their own, join, and
 * shut down.
 *
 * Modelled is what could go wrong between machines: messages in flight both ways, cache IDs that are
 * given to another name while bits with the old meaning are in flight, submissions that have not been
 * sent while their entry is evicted, joins at any time. Sizes, fusion, errors and time have no
 * part in that and are left out; groups.pml has groups and process sets. Execution takes no time. evictOldest chooses an
 * entry of any age.
 *
 * Checked, over all interleavings within the bounds:
 *   agreement    every rank runs the same names in the same order;
 *   soundness    no rank runs what it has not submitted, unless it has joined; no bit has an unknown
 *                ID, no name is submitted twice, no message is skipped;
 *   no deadlock  all ranks end by SHUTDOWN, with everything executed.
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

mtype = { RUN, JOINED, SHUTDOWN };

/* Request lists: acknowledged list, bits by cache ID, requests by name, join, shutdown. */
chan requestLists[RANKS] = [NAMES + 2] of { byte, byte, byte, bool, bool };

/* Response lists: number, kind, cache ID of the tensor or NONE if transient, its name, whether
   the ID is defined as that name now, absent ranks, ID that is evicted. */
chan responseLists[RANKS] = [MOST + 2] of { byte, mtype, byte, byte, bool, byte, byte };

/* For the proof only: the order as the coordinator has sent it. */
byte order[MOST];
byte ordered;

/* Workers that have ended. */
byte ended;

proctype Worker(byte me)
{
	byte cacheID[NAMES];     /* cache ID of a name; NONE */
	bool matches[NAMES];  /* and its entry is what was last submitted */
	byte entry[CACHE];   /* name of a cache ID; NONE */
	bool inFlight[NAMES];   /* submitted, and not executed */
	byte count[NAMES];   /* times submitted */
	byte bits, requests; /* not sent yet */
	bool joining, allJoined, shut;
	byte limit, ran, ack, seq, id, name, absent, evicted, i;
	bool defines;
	mtype kind;

	atomic {
		for (i : 0 .. NAMES - 1) { cacheID[i] = NONE }
		for (i : 0 .. CACHE - 1) { entry[i] = NONE }
		select (limit : 1 .. STEPS);
		i = 0
	}
	do
	:: atomic { !joining && !allJoined ->	/* submit some name */
		select (i : 0 .. NAMES - 1);
		if
		:: !inFlight[i] && count[i] < limit ->
			inFlight[i] = true;
			count[i]++;
			if
			:: cacheID[i] != NONE && matches[i] -> bits = bits | (1 << cacheID[i])
			:: else -> matches[i] = false; requests = requests | (1 << i)
			fi
		:: else
		fi;
		i = 0 }
	:: atomic { bits != 0 || requests != 0 ->	/* Config.Cycle has passed */
		requestLists[me] ! ack, bits, requests, false, false;
		bits = 0; requests = 0 }
	:: atomic { !joining && !allJoined ->	/* nothing more to submit */
		for (i : 0 .. NAMES - 1) {
			if
			:: count[i] < limit -> break
			:: else
			fi
		}
		if
		:: i == NAMES ->
			requestLists[me] ! ack, bits, requests, true, false;
			bits = 0; requests = 0; joining = true
		:: else
		fi;
		i = 0 }
	:: atomic { allJoined && !shut ->
		requestLists[me] ! ack, 0, 0, false, true;
		shut = true }
	:: atomic { responseLists[me] ? seq, kind, id, name, defines, absent, evicted ->
		assert(seq == ack + 1);
		ack = seq;
		if
		:: kind == RUN ->
			if	/* Worker.defineEntry */
			:: id == NONE -> matches[name] = false
			:: id != NONE && defines ->
				if
				:: entry[id] != NONE && entry[id] != name -> cacheID[entry[id]] = NONE; matches[entry[id]] = false
				:: else
				fi;
				entry[id] = name;
				cacheID[name] = id;
				matches[name] = inFlight[name]
			:: else ->
				assert(entry[id] != NONE);	/* the ID is known */
				name = entry[id]
			fi;
			assert(ran < ordered && order[ran] == name);	/* agreement */
			ran++;
			if
			:: absent & (1 << me) -> assert(!inFlight[name])
			:: else -> assert(inFlight[name]); inFlight[name] = false	/* soundness */
			fi
		:: kind == JOINED -> joining = false; allJoined = true
		:: kind == SHUTDOWN -> assert(shut && ran == ordered && bits == 0 && requests == 0)
		fi;
		if	/* Worker.evict */
		:: evicted != NONE && entry[evicted] != NONE ->
			name = entry[evicted];
			entry[evicted] = NONE;
			if
			:: inFlight[name] && (bits & (1 << evicted)) ->	/* the bit has not been sent: send in full */
				bits = bits & ~(1 << evicted);
				requests = requests | (1 << name)
			:: else
			fi;
			cacheID[name] = NONE;
			matches[name] = false
		:: else
		fi;
		seq = 0; id = 0; name = 0; defines = false; absent = 0; evicted = 0;	/* fewer states */
		if
		:: kind == SHUTDOWN -> ended++; break
		:: else
		fi }
	od
}

#define FREE 0
#define LIVE 1
#define EVICTED 2

proctype Coordinator()
{
	byte submitted[NAMES];     /* ranks that have submitted a name; 0: it is not pending */
	bool redefine[NAMES];    /* some rank sent it in full */
	byte entryOf[NAMES];  /* its cache ID when it became pending; NONE */
	byte cacheID[NAMES];  /* its cache ID; NONE */
	byte nameOf[CACHE], state[CACHE], evictedAt[CACHE];
	byte ack[RANKS];
	byte joining, shut, seq;
	byte r, a, bits, requests, i, id, absent, evicted, enough;
	bool joins, shuts, defines;

	atomic {
		for (i : 0 .. NAMES - 1) { cacheID[i] = NONE; entryOf[i] = NONE }
		i = 0
	}
	do
	:: atomic {
		if
		:: requestLists[0] ? a, bits, requests, joins, shuts -> r = 0
		:: requestLists[1] ? a, bits, requests, joins, shuts -> r = 1
#if RANKS > 2
		:: requestLists[2] ? a, bits, requests, joins, shuts -> r = 2
#endif
		fi;
		assert(a >= ack[r] && a <= seq);
		ack[r] = a;
		for (id : 0 .. CACHE - 1) {	/* receiveCachedID */
			if
			:: BUG == 4 && (bits & (1 << id)) && state[id] == EVICTED	/* ignored */
			:: (BUG != 4 || state[id] != EVICTED) && (bits & (1 << id)) ->
				assert(state[id] != FREE);
				i = nameOf[id];
				if
				:: submitted[i] == 0 -> entryOf[i] = cacheID[i]; redefine[i] = false
				:: else
				fi;
				assert(!(submitted[i] & (1 << r)));
				submitted[i] = submitted[i] | (1 << r);
				redefine[i] = redefine[i] || state[id] != LIVE
			:: else
			fi
		}
		for (i : 0 .. NAMES - 1) {	/* receiveRequest */
			if
			:: requests & (1 << i) ->
				if
				:: submitted[i] == 0 -> entryOf[i] = cacheID[i]
				:: else
				fi;
				assert(!(submitted[i] & (1 << r)) && !(joining & (1 << r)));
				submitted[i] = submitted[i] | (1 << r);
				redefine[i] = true
			:: else
			fi
		}
		if
		:: joins -> joining = joining | (1 << r)
		:: shuts -> shut = shut | (1 << r)
		:: else
		fi;
		for (i : 0 .. NAMES - 1) {	/* checkReady, assignID, launch */
			enough = submitted[i] | joining;
			if
			:: BUG == 2 && submitted[i] != 0 -> enough = enough | 1	/* rank 0 is not waited for */
			:: BUG == 3 && joins -> enough = 0	/* tensors that wait for the rank that joins are forgotten */
			:: else
			fi;
			if
			:: submitted[i] != 0 && enough == ALL ->
				absent = joining & ~submitted[i];
				evicted = NONE;
				defines = false;
				if
				:: entryOf[i] != NONE && state[entryOf[i]] == LIVE && !redefine[i] -> id = entryOf[i]
				:: (entryOf[i] == NONE || state[entryOf[i]] != LIVE || redefine[i]) && absent != 0 -> id = NONE
				:: (entryOf[i] == NONE || state[entryOf[i]] != LIVE || redefine[i]) && absent == 0 ->
					id = entryOf[i];
					if
					:: id == NONE ->	/* allocateID */
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
						defines = true;
						nameOf[id] = i;
						state[id] = LIVE;
						cacheID[i] = id
					:: else ->	/* evictOldest, which may find none */
						select (a : 0 .. CACHE);
						if
						:: a < CACHE ->
							if
							:: state[a] == LIVE && submitted[nameOf[a]] == 0 ->
								evicted = a;
								cacheID[nameOf[a]] = NONE;
								state[a] = EVICTED;
								evictedAt[a] = seq + 1;
								if
								:: BUG == 1 -> state[a] = FREE	/* before all ranks know of the eviction */
								:: else
								fi
							:: else
							fi
						:: else
						fi
					fi
				fi;
				order[ordered] = i;
				ordered++;
				seq++;
				for (a : 0 .. RANKS - 1) { responseLists[a] ! seq, RUN, id, i, defines, absent, evicted }
				submitted[i] = 0; redefine[i] = false; entryOf[i] = NONE
			:: else
			fi
		}
		if
		:: joining == ALL ->
			for (i : 0 .. NAMES - 1) { assert(submitted[i] == 0) }	/* everything was ready and launched before */
			seq++;
			for (a : 0 .. RANKS - 1) { responseLists[a] ! seq, JOINED, NONE, 0, false, 0, NONE }
			joining = 0
		:: else
		fi;
		for (id : 0 .. CACHE - 1) {	/* freeEvicted */
			if
			:: state[id] == EVICTED ->
				for (a : 0 .. RANKS - 1) {
					if
					:: ack[a] < evictedAt[id] -> break
					:: else
					fi
				}
				if
				:: a == RANKS -> state[id] = FREE; evictedAt[id] = 0; nameOf[id] = 0
				:: else
				fi
			:: else
			fi
		}
		a = 0; bits = 0; requests = 0; i = 0; id = 0; absent = 0; evicted = 0; enough = 0; r = 0;
		defines = false; joins = false;
		if
		:: shut == ALL ->
			seq++;
			for (a : 0 .. RANKS - 1) { responseLists[a] ! seq, SHUTDOWN, NONE, 0, false, 0, NONE }
			break
		:: else -> shuts = false
		fi }
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
