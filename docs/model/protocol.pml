/* The transaction protocol of docs/protocol.md, for two transactions on two keys: their owners, until
 * each has decided; anybody, who finishes, undoes and repeats; compactions; a reader; and fsck.
 * README.md beside this file says what is modelled and what is left out. Rules that hold here:
 *  - one atomic block is one request to the store, and any time lies between two requests;
 *  - nobody has to take a next step: every state is also one in which a client has died;
 *  - properties, must(...), may speak of ghosts, which no process reads;
 *  - -DSHAPE=n says what the transactions do; -DWITHOUT_... takes a safeguard out;
 *  - -DREADS adds a reader, and takes owners step by step, and fsck, away: what an owner does between
 *    its decision and its locks is seen by nobody, so its read and its decision are one request.
 */

/* ------------------------------------------------------------- what the transactions do */

#define NOTHING 0
#define ASSERT  1 /* lock and read */
#define PUT     2
#define DELETE  3

#ifndef SHAPE
#define SHAPE 1
#endif
#if SHAPE == 1    /* both put both keys */
#define OP(t, k) PUT
#elif SHAPE == 2  /* write skew: each reads what the other writes */
#define OP(t, k) ((t) == (k) + 1 -> ASSERT : PUT)
#elif SHAPE == 3  /* one deletes x and puts y, the other puts x */
#define OP(t, k) ((t) == 1 -> ((k) == 0 -> DELETE : PUT) : ((k) == 0 -> PUT : NOTHING))
#elif SHAPE == 4  /* each puts a key of its own */
#define OP(t, k) ((t) == (k) + 1 -> PUT : NOTHING)
#elif SHAPE == 5  /* one deletes x, the other puts it */
#define OP(t, k) ((k) == 0 -> ((t) == 1 -> DELETE : PUT) : NOTHING)
#elif SHAPE == 6  /* one deletes x and puts y, alone */
#define OP(t, k) ((t) == 1 -> ((k) == 0 -> DELETE : PUT) : NOTHING)
#endif
/* For shape 4. RANGES: the first has scanned a range, in which y was not. KEYS: it asserts that y is
 * not there, and validates it. MUTUAL: the second asserts that x is as it was, too. */
#ifdef MUTUAL
#define VALIDATES(t) true
#elif defined(RANGES) || defined(KEYS)
#define VALIDATES(t) ((t) == 1)
#else
#define VALIDATES(t) false
#endif

#define NEEDS(t, k)  (OP(t, k) != NOTHING)
#define WRITES(t, k) (OP(t, k) >= PUT)
#define IS_THERE(t)  (NEEDS(t, 0) || NEEDS(t, 1))

/* Values are named by who wrote them; 0 is no value. At first x has one, and y has none. */
#define INITIAL(k)      ((k) == 0 -> 3 : 0)
#define AFTER(t, k, v)  (OP(t, k) == PUT -> (t) : (OP(t, k) == DELETE -> 0 : (v)))

#include "store.pml"

/* ------------------------------------------------------------------------- a transaction */

#define TAKES(t, k, mask) (NEEDS(t, k) && !(done & mask) && lock[k] == 0)
#define ACKED   4
#define STEPPED 4
#define ALL_READ(t) ((done & 24) == (NEEDS(t, 0) -> 8 : 0) + (NEEDS(t, 1) -> 16 : 0))

inline write(t) { /* compare-and-set from absent, which cannot tell "never" from "deleted" */
	rewritten[t] = rewritten[t] || status[t] == GONE;
	status[t] = 0;
	buffer[t] = 1;
	SYNC_WRITE(t)
}

inline read(t, k) { /* under the locks */
	seen[2 * t + k] = value[k];
	ts[t] = MAX(ts[t], lock_ts[k]);
#ifndef WITHOUT_READ_TIMESTAMPS
	ts[t] = MAX(ts[t], value_ts[k]);
#ifndef WITHOUT_TAGS
	ts[t] = MAX(ts[t], tag_ts[k])
#endif
#endif
}

inline read_if_mine(t, k, mask) {
	done = done | mask;
	if
#ifdef WITHOUT_LOCK_CHECK
	:: true -> read(t, k)
#else
	:: lock[k] == t -> read(t, k)
#endif
	:: else -> goto abort
	fi
}

#ifndef READS
proctype Owner(byte t) {
	byte done, c;
again:
	/* The row and the locks are asked for together. Whoever waits for a lock may give up at any time. */
	do
	:: atomic { !(done & ACKED) ->
		if
		:: status[t] == ABSENT -> write(t) /* its answer may be lost: then it is sent again */
		:: status[t] == GONE -> write(t);
			/* Meanwhile the row was aborted, or poisoned, and deleted: the answer comes late. */
#ifdef WITHOUT_TIMELY_WRITES
			done = done | ACKED
#else
			goto abort
#endif
		:: status[t] == 0 -> done = done | ACKED /* "yes", or a "no", and the row was read */
		:: else -> goto abort
		fi }
	:: atomic { TAKES(t, 0, 1) -> lock_cell(0, t, c); done = done | 1 }
	:: atomic { TAKES(t, 1, 2) -> lock_cell(1, t, c); done = done | 2 }
	:: atomic { done == ACKED + (NEEDS(t, 0) -> 1 : 0) + (NEEDS(t, 1) -> 2 : 0) -> done = 0; break }
	:: goto abort
	od;
	/* The read may overlap the step to 1-LOCKED. */
	do
	:: atomic { !(done & STEPPED) -> step(t, 0, 1); SENT(stepped, t);
		done = done | STEPPED;
		if
		:: status[t] != 1 -> goto abort
		:: else
		fi }
	:: atomic { NEEDS(t, 0) && !(done & 8) -> read_if_mine(t, 0, 8) }
	:: atomic { NEEDS(t, 1) && !(done & 16) -> read_if_mine(t, 1, 16) }
	:: atomic { (done & STEPPED) && ALL_READ(t) -> done = 0; break }
	:: goto abort /* an assertion is false */
	od;

	atomic { /* the decision; what follows it is anybody's */
		SENT(asked, t);
		if
		:: status[t] == 1 ->
			if
			:: decide(t);
				if
				:: goto ended
				:: true /* the gateway has sent it twice, and the second answer is no */
				fi
			:: goto lost
			fi
		:: else
		fi
	};
#ifndef WITHOUT_READING_A_NO
	atomic { /* a "no" is settled by reading */
		if
		:: status[t] > 1 && status[t] < 6 -> goto ended
#ifndef WITHOUT_UNKNOWN_ROWS
		:: HAS_NO_ROW(t) -> goto ended
#endif
#ifndef WITHOUT_UNKNOWN_POISON
		:: status[t] == 7 && !buffer[t] -> goto ended
#endif
		/* Only a crash that has lost 1-LOCKED leaves this, and a late duplicate may bring it back. */
		:: status[t] < 2 -> goto lost
		:: status[t] < 2 -> status[t] = 6; SYNC_ABORT(t); goto abort
		:: else
		fi
	};
#endif
abort:
	atomic {
		if
		:: status[t] < 2 -> step(t, status[t], 6); SYNC_ABORT(t)
		:: else
		fi;
		report_failure(t);
#ifdef WITHOUT_NEW_ROW_KEYS
		if
		:: status[t] >= 6 && !retried[t] -> retried[t] = 1; failed[t] = 0; status[t] = 0; goto again
		:: else
		fi;
#endif
		goto given_up
	};

lost: /* 0 or 1 after a lost reply settles nothing; the request may still be on its way */
	atomic {
#ifdef WITHOUT_UNKNOWN_OUTCOMES
		report_failure(t);
#endif
		if
		:: status[t] == 1 -> decide(t)
		:: else
		fi
	};
ended:
	false;

given_up: /* it alone decides, so it frees its locks, whether or not its row has come */
	do
	:: atomic { lock[0] == t -> lock_cell(0, 0, c) }
	:: atomic { lock[1] == t -> lock_cell(1, 0, c) }
	od
}
#endif

/* ------------------------------------------------------------------------------- anybody */

/* The owner after its decision, who meets a lock, fsck, and late duplicates of all their requests,
 * any number of times. Nothing here depends on what was seen before, because a status that allows
 * a request allows it for ever after. The exception is a put: who saw 3 or more does not begin one,
 * and what was begun lands within the retention, so before a marker above it is dropped. */
#ifdef WITHOUT_KEPT_MARKERS
#define IN_FLIGHT(t, k) true
#elif defined(WITHOUT_PHASE_SEEN)
#define IN_FLIGHT(t, k) (status[t] < 5 || ts[t] > purged_ts)
#else
#define IN_FLIGHT(t, k) ((k) == 1 || ts[t] > purged_ts)
#endif
/* Who frees has seen 3 or more, poison too, just now or some time ago. */
#ifdef WITHOUT_ROLLING_FORWARD
#define MAY_BE_RELEASED(t) (status[t] >= 2 && status[t] != ABSENT)
#elif defined(WITHOUT_PUT_BEFORE_RELEASE)
#define MAY_BE_RELEASED(t) (IS_PAST_PUT(t) || status[t] == 2 && IS_PUT(t, 0) && IS_PUT(t, 1))
#else
#define MAY_BE_RELEASED(t) IS_PAST_PUT(t)
#endif
#define HOLDS(t, k) (!NEEDS(t, k) || lock[k] == t)
#define IS_PUT(t, k) (!WRITES(t, k) || tag_ts[k] >= ts[t])

proctype Anybody() {
	byte t, k, c;
	do
	:: atomic {
		select(t : 1 .. 2);
		select(k : 0 .. 1);
		if
		/* The row's first write, of the transaction or late, but not after fsck. */
		:: k == 0 && status[t] == ABSENT -> write(t)
#ifdef READS
		:: k == 0 && status[t] == 0 && HOLDS(t, 0) && HOLDS(t, 1) -> status[t] = 1; SYNC_STEP(t)
#ifdef VALIDATED
		/* The validation: the other's key must be as it was at first, and free. */
		:: k == 0 && VALIDATES(t) && MAY_VALIDATE(t) && IS_FREE(2 - t) && value[2 - t] == INITIAL(2 - t) ->
			validated[t] = 1
#endif
		:: k == 0 && status[t] == 1 && HOLDS(t, 0) && HOLDS(t, 1) && (!VALIDATES(t) || IS_VALID(t)) ->
			for (c : 0 .. 1) {
				if
				:: NEEDS(t, c) -> read(t, c)
				:: else
				fi
			}
			c = 0;
			decide(t)
#endif
		/* A lock request, of the transaction or late. */
		:: NEEDS(t, k) && lock[k] == 0 -> lock_cell(k, t, c)
		/* Aborting a living transaction is safe: no lease is modelled. */
		:: k == 0 && status[t] < 2 -> status[t] = 6; SYNC_ABORT(t)
#ifdef WITHOUT_COMPARED_STATUS
		:: k == 0 && status[t] < 6 -> status[t] = 6
#endif
		/* A put, by who saw 2-ASSERTED just now or some time ago. */
		:: WRITES(t, k) && (status[t] == 2 || DECIDED(t) && IN_FLIGHT(t, k)) -> put(t, k)
		:: k == 0 && status[t] == 2 && IS_PUT(t, 0) && IS_PUT(t, 1) -> status[t] = 3; SYNC_PUT(t)
		:: k == 0 && status[t] == 3 -> status[t] = 4
		/* Poison, by who has met a lock and no row of it, just now or some time ago. Of a transaction that
		 * has not decided, and so never will, 7 says the same with a buffer or without: here with one. */
#ifdef WITHOUT_POISON
		:: lock[k] == t && status[t] == ABSENT -> met_absent[t] = 1
		:: lock[k] == t && met_absent[t] -> lock_cell(k, 0, c)
#elif defined(WITHOUT_COMPARED_POISON)
		:: lock[k] == t && status[t] == ABSENT -> met_absent[t] = 1
		:: k == 0 && met_absent[t] && status[t] < 7 -> status[t] = 7
#else
		:: k == 0 && HAS_NO_ROW(t) && IS_THERE(t) -> status[t] = 7; buffer[t] = !DECIDED(t); SYNC_POISON(t)
#endif
		/* The release, of the transaction or by who has met its lock. */
		:: lock[k] == t && MAY_BE_RELEASED(t) -> let_go(k, c)
		/* So says who has found its row over, before it was written again. */
		:: lock[k] == t && rewritten[t] -> lock_cell(k, 0, c)
#ifdef WITHOUT_COMPARED_UNLOCK
		:: lock[k] != 0 && NEEDS(t, k) && MAY_BE_RELEASED(t) -> let_go(k, c)
#endif
#ifdef WITHOUT_NEW_ROW_KEYS
		:: lock[k] == t && retried[t] -> let_go(k, c)
#endif
		:: k == 0 && status[t] == 4 -> status[t] = 5; ENDS_DURING_A_READ(t)
		:: k == 0 && status[t] == 6 -> status[t] = 7
#ifndef NO_DELETED_ROWS
		/* fsck deletes a row that is old enough. */
		:: k == 0 && (status[t] == 5 || status[t] == 7) && IS_OLD(t) ->
			status[t] = GONE; buffer[t] = 0; plan[t] = 0; SYNC(t)
#endif
#ifdef LOSES
		:: k == 0 && kept[t] != status[t] -> lose_row(t)
		:: kept_lock[k] != lock[k] -> lose_unlock(k)
		/* Late duplicates, for which a status may come again. */
#ifndef READS
		:: k == 0 && status[t] == 0 && stepped[t] -> status[t] = 1
		:: k == 0 && status[t] == 1 && asked[t] && !DECIDED(t) -> decide(t)
#endif
#endif
#ifdef WITHOUT_COMPARED_HELP
		:: k == 0 && status[t] == GONE && DECIDED(t) -> status[t] = 3
#endif
		/* A major compaction. */
		:: t == 1 && marker_ts[k] != 0 -> purged_ts = marker_ts[k]; marker_ts[k] = 0
#ifdef RETIRES
		/* A retirer locks x, and gives it back, or is met; it looks; it deletes. */
		:: t == 1 && k == 0 && lock[0] == 0 -> lock_cell(0, RETIRER, c)
		:: t == 1 && k == 0 && lock[0] == RETIRER -> lock_cell(0, 0, c)
		:: t == 1 && k == 0 && lock[0] == RETIRER && !value[0] -> look_to_retire()
#ifdef WITHOUT_RETIRING_UNDER_LOCK
		:: t == 1 && k == 0 && due -> retire()
#else
		:: t == 1 && k == 0 && due && lock[0] == RETIRER -> retire()
#endif
		/* A compaction drops no marker before the older one of x. */
		:: t == 1 && k == 0 && lock_marker[0] && !marker_ts[0] -> lock_marker[0] = 0; tag_marker = 0
#endif
		fi;
		t = 0; k = 0
	}
	od
}

#ifdef READS
#include "reader.pml"
#else
#include "fsck.pml"
#endif

init {
	atomic {
		value[0] = INITIAL(0); value_ts[0] = 1;
#ifdef RETIRES
		value_ts[0] = AHEAD; /* so that a delete may lie well ahead of the lock */
#endif
#if SHAPE == 6
		status[2] = GONE;
#endif
#ifndef READS
		run Owner(1);
		run Owner(2);
#endif
		run Anybody();
#ifdef READS
		run Reader();
#endif
#ifndef READS
		run Fsck();
#endif
	}
}
