/*
 * A part with two copies and two workers, for the model checker spin, as package part decides about
 * it. Each worker makes some pushes, pulls after some of them, and closes. Server 0 is the primary.
 * At most one process is lost, at any time: a server, or with -DWORKER=1 worker 1, under Continue.
 * A lost server may go on in its old epoch, as a process that was stopped and woken does.
 *
 * Messages between two processes keep their order. The end of an epoch is one step of all servers
 * that are left, as the barrier of the hand-over makes it. A worker notices it later, at any time.
 * -DSYNC=0 is an asynchronous part. Values, Sets, the bound of staleness and the folding order are
 * left out; the random runs of sim_test.go have them.
 *
 * Checked, over all interleavings within the bounds:
 *   exactly once   a copy applies the entries of a worker in order, each once (apply);
 *   nothing lost   what was acknowledged, or shown by a pull, is in every later epoch (change);
 *   versions       a synchronous version has one push of every worker that is left (fold), and a pull
 *                  shows exactly the version of its worker's last push (Worker);
 *   equal logs     a replica gets the entry that follows its last one (replicate);
 *   no deadlock    every worker that is left ends.
 *
 * -DBUG=1 to 7 plant bugs that must be found; see check.sh.
 */

#ifndef PUSHES
#define PUSHES 2
#endif
#ifndef SYNC
#define SYNC 1
#endif
#ifndef WORKER
#define WORKER 0 /* 1: worker 1 may be lost, and no server */
#endif
#ifndef BUG
#define BUG 0
#endif

#define CLOSING (PUSHES + 1) /* the number of a worker's last entry: its Close */
#define ROOM (2 * PUSHES + 4) /* of a channel: nobody waits to send */
#define AT(s, c) ((s) * 2 + (c))
#define DEPTH (2 * (PUSHES + 1))
#define SLOT(s, i) ((s) * DEPTH + (i))

mtype = { NONE, ENTRY, PULL, ACK, ANSWER };

/* By server and worker: kind, number, epoch. By worker's server: kind, number or version, epoch. */
chan requests[4] = [ROOM] of { mtype, byte, byte };
chan replies[4] = [ROOM] of { mtype, byte, byte };
/* To each server: worker, number, index, epoch; and index, epoch. */
chan forwards[2] = [ROOM] of { byte, byte, byte, byte };
chan dones[2] = [ROOM] of { byte, byte };

byte epoch;             /* the present one */
byte primary;           /* of the present epoch */
byte serverEpoch[2];    /* a lost server keeps its own */
bool isPrimary[2], hasReplica[2];
bool dead[2];           /* workers */

/* The state of each copy, as State has it. */
byte index[2], version[2];
byte applied[4];        /* number of a worker's last entry */
bool share[4], closed[4];

/* The primary's log, and what else an epoch has. */
byte length[2], logWorker[2 * DEPTH], logNumber[2 * DEPTH], logged[4], done[2];
mtype waiting[4];       /* the first request of a worker, which may have to wait */
byte waitingNumber[4];

/* What the outside knows, for the assertions. */
byte acknowledged[2], shown[2];

/* fold completes the round of server s if no worker owes a push. */
inline fold(s)
{
	if
	:: SYNC && (share[AT(s, 0)] || closed[AT(s, 0)]) && (share[AT(s, 1)] || closed[AT(s, 1)]) && (share[AT(s, 0)] || share[AT(s, 1)]) ->
		version[s]++;
		assert(closed[AT(s, 0)] || applied[AT(s, 0)] == version[s]);
		assert(closed[AT(s, 1)] || applied[AT(s, 1)] == version[s]);
		share[AT(s, 0)] = false;
		share[AT(s, 1)] = false
	:: else
	fi
}

/* apply applies entry n of worker c at server s. */
inline apply(s, c, n)
{
	assert(n == applied[AT(s, c)] + 1);
	index[s]++;
	applied[AT(s, c)] = n;
	if
	:: n == CLOSING -> closed[AT(s, c)] = true
	:: else -> assert(!share[AT(s, c)]); share[AT(s, c)] = SYNC
	fi;
	fold(s)
}

/* first takes the first entry out of the log of server s, as worker w and number m. */
inline first(s)
{
	w = logWorker[SLOT(s, 0)];
	m = logNumber[SLOT(s, 0)];
	length[s]--;
	for (j : 0 .. DEPTH - 2) {
		logWorker[SLOT(s, j)] = logWorker[SLOT(s, j + 1)];
		logNumber[SLOT(s, j)] = logNumber[SLOT(s, j + 1)]
	};
	logWorker[SLOT(s, DEPTH - 1)] = 0;
	logNumber[SLOT(s, DEPTH - 1)] = 0
}

inline acknowledge(s, c, n)
{
	if
	:: n > acknowledged[c] -> acknowledged[c] = n
	:: else
	fi;
	replies[AT(s, c)] ! ACK, n, serverEpoch[s]
}

/* commit applies and acknowledges what the replica has applied. */
inline commit(s)
{
	do
	:: length[s] > 0 && (!hasReplica[s] || done[s] > index[s]) && BUG != 3 ->
		first(s);
		apply(s, w, m);
		acknowledge(s, w, m)
	:: length[s] > 0 && (!hasReplica[s] || done[s] > index[s] - length[s]) && BUG == 3 ->
		first(s);
		acknowledge(s, w, m)
	:: else -> break
	od
}

/* append gives entry n of worker c the next index of the log. */
inline append(s, c, n)
{
	logged[AT(s, c)] = n;
	logWorker[SLOT(s, length[s])] = c;
	logNumber[SLOT(s, length[s])] = n;
	length[s]++;
	if
	:: BUG == 3 -> apply(s, c, n)
	:: BUG == 1 -> acknowledge(s, c, n)
	:: else
	fi;
	if
	:: hasReplica[s] && BUG == 3 -> forwards[1 - s] ! c, n, index[s], serverEpoch[s]
	:: hasReplica[s] && BUG != 3 -> forwards[1 - s] ! c, n, index[s] + length[s], serverEpoch[s]
	:: else
	fi
}

#define pending(s, c) (logged[AT(s, c)] > applied[AT(s, c)])

/* handle handles the first request of worker c, unless it must wait. */
inline handle(s, c)
{
	if
	:: waiting[AT(s, c)] == PULL && !pending(s, c) && !share[AT(s, c)] ->
		for (j : 0 .. 1) {
			if
			:: applied[AT(s, j)] > shown[j] -> shown[j] = applied[AT(s, j)]
			:: else
			fi
		};
		replies[AT(s, c)] ! ANSWER, (SYNC -> version[s] : applied[AT(s, c)]), serverEpoch[s];
		waiting[AT(s, c)] = NONE; waitingNumber[AT(s, c)] = 0; again = true
	:: waiting[AT(s, c)] == ENTRY && waitingNumber[AT(s, c)] <= applied[AT(s, c)] && BUG != 2 ->
		acknowledge(s, c, waitingNumber[AT(s, c)]);
		waiting[AT(s, c)] = NONE; waitingNumber[AT(s, c)] = 0; again = true
	:: waiting[AT(s, c)] == ENTRY && (waitingNumber[AT(s, c)] > applied[AT(s, c)] || BUG == 2) &&
		(!SYNC || waitingNumber[AT(s, c)] == CLOSING || BUG == 6 || (!pending(s, c) && !share[AT(s, c)])) ->
		append(s, c, waitingNumber[AT(s, c)]);
		waiting[AT(s, c)] = NONE; waitingNumber[AT(s, c)] = 0; again = true;
		commit(s)
	:: else
	fi
}

inline advance(s)
{
	do
	:: again = false;
		handle(s, 0);
		handle(s, 1);
		if
		:: again
		:: else -> break
		fi
	od
}

inline receive(s, c)
{
	if
	:: e == serverEpoch[s] ->
		assert(isPrimary[s]);
		waiting[AT(s, c)] = k;
		waitingNumber[AT(s, c)] = n;
		advance(s)
	:: else	/* of another epoch */
	fi
}

inline replicate(s)
{
	if
	:: e == serverEpoch[s] ->
		assert(!isPrimary[s] && i == index[s] + 1);
		apply(s, c, n);
		dones[1 - s] ! i, e
	:: else
	fi
}

proctype Server(byte me)
{
	byte c, n, i, e, j, w, m;
	mtype k;
	bool again;

end:	do
	:: atomic { waiting[AT(me, 0)] == NONE && nempty(requests[AT(me, 0)]) -> requests[AT(me, 0)] ? k, n, e; receive(me, 0); k = NONE; n = 0; e = 0; j = 0; w = 0; m = 0 }
	:: atomic { waiting[AT(me, 1)] == NONE && nempty(requests[AT(me, 1)]) -> requests[AT(me, 1)] ? k, n, e; receive(me, 1); k = NONE; n = 0; e = 0; j = 0; w = 0; m = 0 }
	:: atomic { forwards[me] ? c, n, i, e -> replicate(me); c = 0; n = 0; i = 0; e = 0 }
	:: atomic { dones[me] ? i, e ->
		if
		:: e == serverEpoch[me] -> done[me] = i; commit(me); advance(me)
		:: else
		fi;
		i = 0; e = 0; j = 0; w = 0; m = 0 }
	od
}

proctype Worker(byte me)
{
	byte myEpoch, myPrimary, sent, acked, i, n, e;
	bool pulls;
	mtype k;

	{
	do
	:: atomic { !pulls && sent < PUSHES ->
		sent++;
		requests[AT(myPrimary, me)] ! ENTRY, sent, myEpoch;
		if
		:: pulls = true; requests[AT(myPrimary, me)] ! PULL, 0, myEpoch
		:: true
		fi }
	:: atomic { !pulls && sent == PUSHES -> sent++; requests[AT(myPrimary, me)] ! ENTRY, sent, myEpoch }
	:: atomic { replies[AT(myPrimary, me)] ? k, n, e ->
		if
		:: e != myEpoch
		:: e == myEpoch && k == ACK && n > acked -> acked = n
		:: e == myEpoch && k == ACK && n <= acked
		:: e == myEpoch && k == ANSWER -> assert(pulls && n == sent); pulls = false
		fi;
		k = NONE; n = 0; e = 0 }
	:: atomic { myEpoch != epoch ->
		myEpoch = epoch; myPrimary = primary;
		i = acked;
		do
		:: i < sent && BUG != 5 -> i++; requests[AT(myPrimary, me)] ! ENTRY, i, myEpoch
		:: else -> break
		od;
		i = 0;
		if
		:: pulls -> requests[AT(myPrimary, me)] ! PULL, 0, myEpoch
		:: else
		fi }
	:: atomic { acked == CLOSING && !pulls -> break }
	od
	} unless { dead[me] }
}

/* seal ends the epoch of server s: its log is applied, and nothing is acknowledged. */
inline seal(s)
{
	do
	:: length[s] > 0 ->
		first(s);
		if
		:: BUG != 3 -> apply(s, w, m)
		:: else
		fi
	:: else -> break
	od;
	for (j : 0 .. 1) {
		waiting[AT(s, j)] = NONE; waitingNumber[AT(s, j)] = 0; logged[AT(s, j)] = 0
	};
	done[s] = 0
}

/* handOver makes the copy of server s that of server r, which has not more entries. */
inline handOver(s, r)
{
	assert(index[r] <= index[s]);
	index[r] = index[s]; version[r] = version[s];
	for (j : 0 .. 1) {
		applied[AT(r, j)] = applied[AT(s, j)]; share[AT(r, j)] = share[AT(s, j)]; closed[AT(r, j)] = closed[AT(s, j)]
	}
}

/* begin begins the epoch at server s. */
inline begin(s)
{
	serverEpoch[s] = epoch;
	done[s] = index[s];
	if
	:: dead[1] && BUG != 7 -> closed[AT(s, 1)] = true
	:: else
	fi;
	fold(s)
}

/* Change loses at most one process, and then begins the next epoch without it. */
proctype Change()
{
	byte lost, j, w, m;

	if
	:: true	/* nobody is lost */
	:: WORKER ->
		dead[1] = true;
		atomic {
			seal(0); seal(1);
			if
			:: BUG != 4 -> handOver(0, 1)
			:: else
			fi;
			epoch++;
			begin(0); begin(1)
		}
	:: !WORKER ->
		if
		:: lost = 0
		:: lost = 1
		fi;
		atomic {
			primary = 1 - lost;
			seal(primary);
			for (j : 0 .. 1) {
				assert(acknowledged[j] <= applied[AT(primary, j)] && shown[j] <= applied[AT(primary, j)])
			};
			epoch++;
			isPrimary[primary] = true; hasReplica[primary] = false;
			begin(primary)
		}
	fi
}

init
{
	atomic {
		isPrimary[0] = true; hasReplica[0] = true;
		waiting[0] = NONE; waiting[1] = NONE; waiting[2] = NONE; waiting[3] = NONE;
		run Server(0); run Server(1); run Worker(0); run Worker(1); run Change()
	}
}
