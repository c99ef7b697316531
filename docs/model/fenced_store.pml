/* The units' cells and the transactions' rows of the fenced protocol; the requests that change them;
 * and what must be true of them. Every timestamp is its sender's: the store compares, and keeps the
 * greatest. Statuses lie at t0 + k, so of a row the greatest is seen.
 */

/* ---------------------------------------------------------------------------- the tables */

#define ABSENT 8 /* the transaction's row has never been there */
#define GONE   9 /* fsck has deleted it, at t0 + 7: what is put below that is masked */
#define PURGED 10 /* a compaction has dropped that marker */
#define NAMELESS 11 /* it was poisoned then: 7 without a buffer */
#define HAS_NO_ROW(t) (ABSENT <= status[t] && status[t] <= PURGED)
#ifdef WITHOUT_UNKNOWN_POISON
#define IS_UNKNOWN(t) HAS_NO_ROW(t)
#else
#define IS_UNKNOWN(t) (status[t] >= ABSENT)
#endif

byte status[4] = ABSENT; /* by transaction, 1 to 3; 0 to 7 are the protocol's */
byte C[4];               /* the timestamp to commit at; from the decision on it is in the plan */
byte n_read[8];          /* by transaction and unit: the free counter that it asks with */
byte asked_ts[8];        /* the timestamp that it first asked at */
byte sent[4];            /* it has asked; where owners are not step by step, units as bits */
byte granted[4];         /* units as bits: answered yes, or found to be its own */
bit yes[4];              /* the owner heard that it has decided */
#define UNIT(t, k) (2 * (t) + (k))
#define BIT(k) ((k) + 1)

byte value[2], value_ts[2], marker_ts[2]; /* the newest visible version, and the delete marker */
byte n[2], holder[2], by[2], lock_ts[2];  /* the lock: counter; holder, 0: free; who left it so */
byte purged[2];                           /* the greatest marker that a compaction has dropped */

/* A client's clock is 1 or AHEAD when its transaction begins, so the second's may lie behind. */
#ifndef AHEAD
#define AHEAD 4
#endif

/* ---------------------------------------------------------- ghosts, and what must be true */

byte want[2];            /* what the decisions so far make of the units */
bit decided[4];
byte seen[8];            /* what each has read */
bit failed[4];           /* its client was told that nothing was written */
#ifdef READS
byte decisions, was[8];  /* the units before the first decision, after it, and so on: [2n + k] */
#endif
bit rewritten[4];        /* the row was written again after all of it had gone */
#if defined(WITHOUT_POISON) || defined(WITHOUT_COMPARED_POISON)
bit met_absent[4];       /* somebody has met its lock, and no row of it */
#endif
#if defined(WITHOUT_POISON_ABOVE) || defined(WITHOUT_SYNCED_POISON)
bit poisoned[4];         /* 7 was put where there was no row */
#endif
#ifdef LOSES
bit asked[4];            /* the decision has been sent, and may come late */
#define SENT_DECISION(t) asked[t] = 1
#else
#define SENT_DECISION(t) skip
#endif
/* A read is over, or begins again, before a row is deleted that was not yet complete when it began. */
#if defined(READS) && !defined(WITHOUT_BOUNDED_LOOKS)
bit reading, is_new[4];
#define ENDS_DURING_A_READ(t) is_new[t] = reading
#define IS_OLD(t) !is_new[t]
#else
#define ENDS_DURING_A_READ(t) skip
#define IS_OLD(t) true
#endif
#ifdef WITHOUT_NEW_ROW_KEY
bit retried[4];
#endif
#if defined(KEYS) && !defined(WITHOUT_SYNCED_WRITE)
#define MAY_BE_LOST(t) !VALIDATES(t)
#else
#define MAY_BE_LOST(t) true
#endif
#ifdef KEYS
bit evaluated[3];        /* it has read the other's unit, free, and as it was at first */
bit validated[3];        /* its place in the order */
bit overtaken[3];        /* somebody has read what the other put, and not what it puts */
#ifdef WITHOUT_VALIDATION
#define IS_VALID(t) (!VALIDATES(t) || evaluated[t])
#else
#define IS_VALID(t) (!VALIDATES(t) || validated[t])
#endif
#ifdef WITHOUT_LOCKS_AT_VALIDATION
#define MAY_VALIDATE(t) (status[t] == 0)
#elif defined(WITHOUT_ROW_AT_VALIDATION)
#define MAY_VALIDATE(t) (holder[t - 1] == t)
#else
#define MAY_VALIDATE(t) (status[t] == 0 && holder[t - 1] == t)
#endif
#ifdef WITHOUT_FREE_AT_VALIDATION
#define IS_UNTAKEN(t, k) (value[k] == was[k])
#elif defined(WITHOUT_COUNT_AT_VALIDATION)
#define IS_UNTAKEN(t, k) (holder[k] == 0)
#else
#define IS_UNTAKEN(t, k) (holder[k] == 0 && n[k] == n_read[UNIT(t, k)])
#endif
#else
#define IS_VALID(t) true
#endif

#include "properties.pml"

#define MAX(a, b) ((a) > (b) -> (a) : (b))

#ifdef RETIRES
#include "fenced_retire.pml"
#define IS_MASKED(k, c) ((k) == 0 && (c) <= lock_marker)
#else
#define IS_STALE(t, k) false
#define IS_MASKED(k, c) false
#endif

/* ------------------------------------------------------------------------------ requests */

#ifdef WITHOUT_COUNTER
#define NEXT(m) (m)
#else
#define NEXT(m) ((m) + 1)
#endif

inline put_lock(k, counter, who, name, c) {
	if
	:: c >= lock_ts[k] && !IS_MASKED(k, c) -> n[k] = counter; holder[k] = who; by[k] = name; lock_ts[k] = c
	:: else /* below what is there, or masked */
	fi
}

inline put_value(t, k) { /* the value, or a delete marker */
	if
	:: PUTS(t, k) && C[t] > marker_ts[k] && C[t] >= value_ts[k] ->
		value[k] = t; value_ts[k] = C[t]
	:: OP(t, k) == DELETE ->
		marker_ts[k] = MAX(marker_ts[k], C[t]);
		if
		:: value_ts[k] <= marker_ts[k] -> value[k] = 0; value_ts[k] = 0
		:: else
		fi
	:: else /* masked, or below a later version; or only asserted */
	fi
}

#ifdef FREE_AT_C
#define FREE_TS(t) C[t]
#else
#define FREE_TS(t) (C[t] + 1)
#endif

inline free_lock(t, k) { /* the lock's part of a finish */
	must(KEEPS_ITS_LOCKS, FREE_TS(t) < lock_ts[k] || holder[k] == 0 || holder[k] == t);
	put_lock(k, NEXT(n_read[UNIT(t, k)]), 0, 0, FREE_TS(t))
}

#define FREE_SHOWS_LAST(k) (holder[k] != 0 || value[k] == want[k])

inline finish(t, k) { /* one row mutation: the values at C, and the free lock at C + 1 */
	put_value(t, k);
	free_lock(t, k);
	must(LAST_COMMIT_SEEN, FREE_SHOWS_LAST(k))
}

inline release(k) { /* the lock of an aborted transaction, one above the lock's own timestamp */
	must(KEEPS_ITS_LOCKS, !decided[holder[k]]);
#ifdef WITHOUT_COUNTING_RELEASE
	put_lock(k, n[k] - 1, 0, 0, lock_ts[k] + 1);
#else
	put_lock(k, n[k], 0, 0, lock_ts[k] + 1);
#endif
	must(LAST_COMMIT_SEEN, FREE_SHOWS_LAST(k))
}

/* At t0 + 7, so that a first write which comes late lies below. */
inline poison(t) {
	status[t] = 7;
#if defined(WITHOUT_POISON_ABOVE) || defined(WITHOUT_SYNCED_POISON)
	poisoned[t] = 1
#endif
}

inline report_failure(t) {
	failed[t] = 1;
	must(TRUE_REPORT, !decided[t] && !decided[OTHER(t)])
}

#ifdef READS
#define IS_TRUE(t, k) true
#define IS_ROW_SENT(t) true
#else
#define IS_ROW_SENT(t) sent[t]
#define IS_TRUE(t, k) (!ASSERTS(t, k) || seen[UNIT(t, k)] == want[k])
#endif
#ifdef LOSES
#define IS_ACKNOWLEDGED(t) true
#else
#define IS_ACKNOWLEDGED(t) (status[t] != ABSENT)
#endif
#define IS_ABOVE(c, k) ((c) > value_ts[k] && (c) >= lock_ts[k] && (c) > marker_ts[k])

inline take_place(t) { /* the commit point: its place in the serial order */
	must(SERIALISABLE, IS_TRUE(t, 0) && IS_TRUE(t, 1));
	must(TRUE_REPORT, !failed[t] && !failed[OTHER(t)]);
	must(COMMITS_ONCE, !decided[t] && !decided[OTHER(t)]);
#ifdef KEYS
	must(RANGES_HOLD, !VALIDATES(t) || !overtaken[t]);
#endif
#ifdef MUTUAL /* each has found the other's unit as it was at first */
	must(RANGES_HOLD, decisions == 0);
#endif
	must(ABOVE_ALL, !NEEDS(t, 0) || IS_ABOVE(C[t], 0));
	must(ABOVE_ALL, !NEEDS(t, 1) || IS_ABOVE(C[t], 1));
	decided[t] = 1;
	want[0] = AFTER(t, 0, want[0]);
	want[1] = AFTER(t, 1, want[1]);
#ifdef READS
	decisions++;
	was[2 * decisions] = want[0];
	was[2 * decisions + 1] = want[1];
#endif
	seen[UNIT(t, 0)] = 0;
	seen[UNIT(t, 1)] = 0;
	asked_ts[UNIT(t, 0)] = 0; /* what is late of it lands at C */
	asked_ts[UNIT(t, 1)] = 0;
	granted[t] = 0
}

inline decide(t) { /* 0-WRITTEN to 2-ASSERTED took place */
	must(HOLDS_ITS_LOCKS, !NEEDS(t, 0) || holder[0] == t);
	must(HOLDS_ITS_LOCKS, !NEEDS(t, 1) || holder[1] == t);
	status[t] = 2;
	take_place(t)
}

/* A lock request has found the free value that it was sent with. It may be late, or sent again. */
inline grant(t, k, c) {
#ifdef READS
	c = C[t];
#else
	if
	:: c = asked_ts[UNIT(t, k)]
	:: C[t] > asked_ts[UNIT(t, k)] -> c = C[t]
	fi;
	granted[t] = granted[t] | BIT(k);
#endif
	put_lock(k, NEXT(n_read[UNIT(t, k)]), t, 0, c);
	c = 0
}

/* A request without a row is the whole transaction. */
inline commit_rowless(t) {
	take_place(t);
	commit_unit(t, 0);
	commit_unit(t, 1);
	must(LAST_COMMIT_SEEN, FREE_SHOWS_LAST(0) && FREE_SHOWS_LAST(1))
}

inline commit_unit(t, k) { /* the values, and a free lock that names it */
	if
	:: WRITES(t, k) ->
		put_value(t, k);
		put_lock(k, NEXT(n_read[UNIT(t, k)]), 0, t, C[t])
	:: else
	fi
}
