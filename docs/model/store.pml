/* The cells of both keys and the transactions' rows; the requests that change them, with the
 * timestamps that HBase gives; and what must be true of them. */

/* ---------------------------------------------------------------------------- the tables */

#define ABSENT 8 /* the transaction's row has never been there */
#define GONE   9 /* fsck has deleted it */
#define HAS_NO_ROW(t) (status[t] >= ABSENT)
/* Its values are put, or it is over; GONE too, since it has been there. */
#define IS_PAST_PUT(t) (status[t] >= 3 && status[t] != ABSENT)

byte status[3] = ABSENT; /* by transaction, 1 and 2; 0 to 7 are the protocol's */
bit buffer[3], plan[3];  /* poison is 7-ABORTED without a buffer */
bit rewritten[3];        /* the row was written again after fsck had deleted it */
byte ts[3];              /* the greatest timestamp read; from the decision on: the commit's */

byte value[2], value_ts[2], marker_ts[2]; /* the newest visible version, and the delete marker */
byte lock[2], lock_ts[2], lock_marker[2]; /* 0: free */
byte tag_ts[2];

/* Server clocks: that of x is any of 1 and AHEAD at each write, so it also goes back. */
#ifndef AHEAD
#define AHEAD 3
#endif

/* ---------------------------------------------------------- ghosts, and what must be true */

byte decisions, first;   /* how many have decided, and who was first: the serial order */
byte seen[6];            /* what each read under its locks */
bit failed[3];           /* its client was told that nothing was written */
#ifdef WITHOUT_NEW_ROW_KEYS
bit retried[3];
#endif
#if defined(WITHOUT_POISON) || defined(WITHOUT_COMPARED_POISON)
bit met_absent[3];       /* somebody has met its lock, and no row of it */
#endif
/* A read is over, or begins again, before a row is deleted that was not yet complete when it began. */
#if defined(READS) && !defined(WITHOUT_BOUNDED_LOOKS)
bit reading, is_new[3];
#define ENDS_DURING_A_READ(t) is_new[t] = reading
#define IS_OLD(t) !is_new[t]
#else
#define ENDS_DURING_A_READ(t) skip
#define IS_OLD(t) true
#endif
#if defined(RANGES) || defined(KEYS)
#define VALIDATED
bit validated[3];        /* its place in the order */
bit overtaken[3];        /* somebody has read what the other put, and not what it puts */
#ifdef WITHOUT_VALIDATION
#define IS_VALID(t) true
#else
#define IS_VALID(t) validated[t]
#endif
#ifdef WITHOUT_LOCKS_AT_VALIDATION
#define IS_READY(t) true
#else
#define IS_READY(t) (lock[t - 1] == t)
#endif
#ifdef WITHOUT_FREE_AT_VALIDATION
#define IS_FREE(k) true
#else
#define IS_FREE(k) (lock[k] == 0)
#endif
#ifdef WITHOUT_ROW_AT_VALIDATION
#define MAY_VALIDATE(t) (status[t] < 2 || status[t] == ABSENT)
#elif defined(KEYS) || defined(WITHOUT_STEP_AT_VALIDATION)
#define MAY_VALIDATE(t) (status[t] < 2 && IS_READY(t))
#else
#define MAY_VALIDATE(t) (status[t] == 1 && IS_READY(t))
#endif
#else
#define IS_VALID(t) true
#endif
byte purged_ts;          /* the marker that a compaction has dropped */

#define DECIDED(t) (decisions == 2 || (decisions == 1 && first == (t)))
#define LOGICAL(n, k) ((n) == 0 -> INITIAL(k) : ((n) == 1 -> AFTER(first, k, INITIAL(k)) \
	: AFTER(3 - first, k, AFTER(first, k, INITIAL(k)))))

#include "properties.pml"
#include "log.pml"

/* ------------------------------------------------------------------------------ requests */

#define MAX(a, b) ((a) > (b) -> (a) : (b))

#ifdef RETIRES
#include "retire.pml"
#endif

inline server_clock(k, c) {
	if
	:: c = 1
	:: (k) == 0 -> c = AHEAD
	fi
}

/* HBase writes a checked put at max(its clock, the timestamp of the cell checked). */
inline lock_cell(k, holder, c) {
	server_clock(k, c);
#ifdef WITHOUT_LATEST_TIMESTAMP
	if
	:: c >= lock_ts[k] -> lock_ts[k] = c; lock[k] = holder
	:: else /* hidden by what is there */
	fi;
#elif defined(WITHOUT_EMPTY_VALUES)
	if
	:: holder == 0 -> lock_marker[k] = MAX(c, lock_ts[k]); lock_ts[k] = 0; lock[k] = 0
	:: holder != 0 && c > lock_marker[k] -> lock_ts[k] = c; lock[k] = holder
	:: else /* masked by the marker */
	fi;
#else
	c = MAX(c, lock_ts[k]);
	if
	:: c > lock_marker[k] -> lock_ts[k] = c; lock[k] = holder; SYNC_LOCK(k, holder)
	:: else /* masked by what a retirer has left */
	fi;
#endif
	c = 0
}

inline let_go(k, c) { /* a compare-and-set from the row key to empty has found the row key */
	must(KEEPS_ITS_LOCKS, IS_PAST_PUT(lock[k]));
	lock_cell(k, 0, c);
	must(LAST_COMMIT_SEEN, lock[k] != 0 || value[k] == LOGICAL(decisions, k))
}

inline report_failure(t) {
	failed[t] = 1;
	must(TRUE_REPORT, !DECIDED(t))
}

inline step(t, from, to) { /* compare-and-set of the status, by the owner */
	if
#ifdef WITHOUT_COMPARED_STATUS
	:: status[t] != from && status[t] < 8 -> status[t] = to
#endif
#ifdef WITHOUT_COMPARED_OWNER
	:: status[t] == GONE -> status[t] = to
#endif
	:: status[t] == from -> status[t] = to
	:: else
	fi
}

inline put(t, k) { /* the value, or a delete marker, and the tag */
	if
	:: OP(t, k) == PUT && ts[t] > marker_ts[k] && ts[t] >= value_ts[k] ->
		value[k] = t; value_ts[k] = ts[t]
	:: OP(t, k) == DELETE ->
		marker_ts[k] = MAX(marker_ts[k], ts[t]);
		if
		:: value_ts[k] <= marker_ts[k] -> value[k] = 0; value_ts[k] = 0
		:: else
		fi
	:: else /* masked, or below a later version */
	fi;
	SYNC_KEY(k);
#ifdef RETIRES
	if
	:: k == 1 || ts[t] > tag_marker -> tag_ts[k] = MAX(tag_ts[k], ts[t])
	:: else
	fi;
	if
	:: k == 0 && passed == READING -> passed = CHANGED
	:: else
	fi
#else
	tag_ts[k] = MAX(tag_ts[k], ts[t])
#endif
}

#define IS_ABOVE(n, k) ((n) >= value_ts[k] && (n) >= tag_ts[k] && (n) >= lock_ts[k] \
	&& (n) >= marker_ts[k])

inline decide(t) { /* 1-LOCKED to 2-ASSERTED took place */
	must(SERIALISABLE, !NEEDS(t, 0) || seen[2 * t] == LOGICAL(decisions, 0));
	must(SERIALISABLE, !NEEDS(t, 1) || seen[2 * t + 1] == LOGICAL(decisions, 1));
	must(HOLDS_ITS_LOCKS, !NEEDS(t, 0) || lock[0] == t);
	must(HOLDS_ITS_LOCKS, !NEEDS(t, 1) || lock[1] == t);
	must(TRUE_REPORT, !failed[t]);
#ifdef VALIDATED
	must(RANGES_HOLD, !VALIDATES(t) || !overtaken[t]);
#endif
#ifdef MUTUAL /* each has found the other's key as it was at first */
	must(RANGES_HOLD, decisions == 0);
#endif
	must(ABOVE_ALL, !NEEDS(t, 0) || IS_ABOVE(ts[t], 0));
	must(ABOVE_ALL, !NEEDS(t, 1) || IS_ABOVE(ts[t], 1));
	status[t] = 2; SYNC_DECISION(t);
#ifndef WITHOUT_PLAN_AT_DECISION
	plan[t] = 1;
#endif
	ts[t] = ts[t] + 1;
	if
	:: decisions == 0 -> first = t
	:: else
	fi;
	decisions++;
	seen[2 * t] = 0;
	seen[2 * t + 1] = 0
}
