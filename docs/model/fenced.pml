/* The fenced protocol: a lock that counts for each unit, compare-and-set where two clients race, and
 * timestamps that order the rest. Two or three transactions on two units: their owners, until each
 * has decided; anybody, who finishes, undoes and repeats; compactions; a reader; and fsck.
 * README.md beside this file says what is modelled and what is left out. Rules that hold here:
 *  - one atomic block is one request to the store, and any time lies between two requests;
 *  - nobody has to take a next step: every state is also one in which a client has died;
 *  - properties, must(...), may speak of ghosts, which no process reads;
 *  - -DSHAPE=n says what the transactions do; -DWITHOUT_... takes a rule out;
 *  - -DROWLESS=n: transactions from the n-th on have no row: all their units lie in one region;
 *  - -DSPLIT: the region of the second may be split; the third is its owner's ordinary attempt then;
 *  - -DREADS adds a reader, and takes owners step by step, and fsck, away; -DRETIRES adds the retiring
 *    of x; with -DWAITS who asks for two locks asks one by one, and waits for each.
 */

/* ------------------------------------------------------------- what the transactions do */

#define NOTHING 0
#define ASSERT  1 /* lock, and write nothing */
#define PUT     2 /* assert what is there, and put */
#define DELETE  3 /* assert what is there, and delete */
#define BLIND   4 /* put, and assert nothing */

#ifndef SHAPE
#define SHAPE 1
#endif
#ifdef SPLIT
#define TRANSACTIONS 3
#else
#define TRANSACTIONS 2
#endif
#if SHAPE == 1    /* both put both units */
#define OP(t, k) PUT
#elif SHAPE == 2  /* write skew: each reads what the other writes */
#define OP(t, k) ((t) == (k) + 1 -> ASSERT : PUT)
#elif SHAPE == 3  /* one deletes x and puts y, the other puts x */
#define OP(t, k) (((t) == 1) * ((k) == 0 -> DELETE : PUT) + ((t) == 2 && (k) == 0) * PUT)
#elif SHAPE == 4  /* each puts a unit of its own */
#define OP(t, k) ((t) == (k) + 1 -> PUT : NOTHING)
#elif SHAPE == 5  /* one puts x, the other deletes it */
#define OP(t, k) (((k) == 0) * ((t) == 1 -> PUT : DELETE))
#elif SHAPE == 7  /* one puts both units, the other does so blindly */
#define OP(t, k) ((t) == 1 -> PUT : BLIND)
#elif SHAPE == 8  /* three: one puts both units, one puts x, one deletes x */
#undef TRANSACTIONS
#define TRANSACTIONS 3
#define OP(t, k) (((t) == 1) * PUT + ((t) == 2 && (k) == 0) * PUT + ((t) == 3 && (k) == 0) * DELETE)
#elif SHAPE == 9  /* three: two put x, which is not there, and one deletes it */
#undef TRANSACTIONS
#define TRANSACTIONS 3
#define X_IS_ABSENT
#define OP(t, k) (((k) == 0) * ((t) == 3 -> DELETE : PUT))
#elif SHAPE == 11 /* three: one puts both units, and write skew of the others */
#undef TRANSACTIONS
#define TRANSACTIONS 3
#define OP(t, k) ((t) == 1 || (t) == (k) + 2 -> PUT : ASSERT)
#elif SHAPE == 12 /* three: two put both units, one asserts x and deletes y */
#undef TRANSACTIONS
#define TRANSACTIONS 3
#define OP(t, k) ((t) != 3 -> PUT : ((k) == 0 -> ASSERT : DELETE))
#elif SHAPE == 13 /* one puts both units, the other asserts x and puts y */
#define OP(t, k) ((t) == 1 || (k) == 1 -> PUT : ASSERT)
#elif SHAPE == 14 /* one puts x, the other asserts x and puts y */
#define OP(t, k) ((t) == 1 -> ((k) == 0) * PUT : ((k) == 0 -> ASSERT : PUT))
#endif

#if defined(MUTUAL) && !defined(ROWLESS)
/* For shape 4: each asserts that the other's unit is as it was, and validates it. */
#define VALIDATES(t) true
#elif defined(KEYS) /* the first does */
#define VALIDATES(t) ((t) == 1)
#else
#define VALIDATES(t) false
#endif

#ifdef SPLIT
#define IS_ATTEMPT(t) ((t) == 3)
#define OTHER(t) ((t) == 1 -> 0 : 5 - (t)) /* the same owner's: one of them may commit */
#else
#define IS_ATTEMPT(t) false
#define OTHER(t) 0
#endif
#ifdef ROWLESS
#define IS_ROWLESS(t) ((t) >= ROWLESS && !IS_ATTEMPT(t))
#else
#define IS_ROWLESS(t) false
#endif

#define NEEDS(t, k)   (OP(t, k) != NOTHING)
#define ASSERTS(t, k) (NEEDS(t, k) && OP(t, k) != BLIND)
#define PUTS(t, k)    (OP(t, k) == PUT || OP(t, k) == BLIND)
#define WRITES(t, k)  (PUTS(t, k) || OP(t, k) == DELETE)
#define UNITS(t)      ((NEEDS(t, 0) -> 1 : 0) + (NEEDS(t, 1) -> 2 : 0))

/* Values are named by who wrote them; 0 is no value. At first x has one, and y has none. */
#define FIRST          9
#define AFTER(t, k, v) (PUTS(t, k) -> (t) : (OP(t, k) == DELETE -> 0 : (v)))

#include "fenced_store.pml"

/* ------------------------------------------------------------------------- a transaction */

inline raise(t, k) { /* above all that was read */
#ifdef WITHOUT_TIMESTAMPS_READ
	skip
#else
	C[t] = MAX(C[t], 1 + value_ts[k]);
#ifndef WITHOUT_TIMESTAMP_OF_LOCK
	C[t] = MAX(C[t], 1 + lock_ts[k])
#endif
#endif
}

inline read_unit(t, k) { /* lock and values, at one instant */
#ifndef READS /* where it is read with the lock in one step, and true */
	seen[UNIT(t, k)] = (ASSERTS(t, k) -> value[k] : 0);
#endif
	n_read[UNIT(t, k)] = n[k];
#ifdef RETIRES
	pass_time(t, k);
#endif
	raise(t, k)
}

#ifndef READS

inline give_up(t) { /* nothing that it did can commit: by compare-and-set, where there is a row */
	if
	:: status[t] == 0 -> status[t] = 6
	:: else
	fi;
	C[t] = 0;
	seen[UNIT(t, 0)] = 0;
	seen[UNIT(t, 1)] = 0;
	granted[t] = 0;
	report_failure(t)
}

#ifdef WITHOUT_NEW_ROW_KEY
#define IS_NEW(t) !retried[t] /* what is late of the first attempt has its timestamp */
#else
#define IS_NEW(t) true
#endif

inline ask(t, k) {
	if
	:: NEEDS(t, k) && IS_NEW(t) -> asked_ts[UNIT(t, k)] = C[t]
	:: else
	fi
}

#ifdef WAITS
#define SENT(t, k) (sent[t] & BIT(k))
#ifdef WITHOUT_UNIT_ORDER
#define EARLIER(t) (2 - (t))
#else
#define EARLIER(t) 0
#endif
#else
#define SENT(t, k) sent[t]
#endif

/* The answer is "no", or was lost, and the unit is read again. */
#define IS_REFUSED(t, k) (SENT(t, k) && NEEDS(t, k) && !(granted[t] & BIT(k)) && holder[k] == 0 \
	&& n[k] != n_read[UNIT(t, k)])

#ifdef WITHOUT_LOOKING_AT_NEW_TIMESTAMP
#define LIES_BELOW(t, k) true
#else
#define LIES_BELOW(t, k) (C[t] > lock_ts[k])
#endif

inline ask_again(t, k) { /* with the new free value */
	if
	:: true -> /* a later attempt: read and evaluate again, and go above */
#ifdef WITHOUT_EVALUATING_AGAIN
		n_read[UNIT(t, k)] = n[k]; raise(t, k)
#elif defined(WITHOUT_RAISING_AGAIN)
		seen[UNIT(t, k)] = value[k]; n_read[UNIT(t, k)] = n[k]
#else
		read_unit(t, k)
#endif
	:: !ASSERTS(t, k) && LIES_BELOW(t, k) -> /* a first attempt, which asserts nothing here */
		n_read[UNIT(t, k)] = n[k]
	fi;
	ask(t, k)
}

#ifdef WITHOUT_EVERY_LOCK
#define MAY_DECIDE(t) granted[t]
#else
#define MAY_DECIDE(t) (granted[t] == UNITS(t))
#endif

inline read_units(t) { /* one by one */
	do
	:: atomic { NEEDS(t, 0) && !(done & 1) && holder[0] == 0 ->
		read_unit(t, 0);
		done = done | 1;
		if
		:: done == UNITS(t) -> done = 0; break
		:: else
		fi }
	:: atomic { NEEDS(t, 1) && !(done & 2) && holder[1] == 0 ->
		read_unit(t, 1);
		done = done | 2;
		if
		:: done == UNITS(t) -> done = 0; break
		:: else
		fi }
	od
}

proctype Owner(byte t) {
	byte done;
again:
	read_units(t);
	/* The row and the locks, and the decision; what follows that is anybody's. It may give up at any time. */
	do
#ifdef WITHOUT_BOUNDED_WRITE
	/* The answer was lost, and the row is sent again: it has been aborted or poisoned, and deleted. */
	:: atomic { status[t] == PURGED -> status[t] = 0; rewritten[t] = 1 }
#endif
#ifdef WAITS /* one by one */
	:: atomic { !sent[t] -> ask(t, EARLIER(t)); sent[t] = BIT(EARLIER(t)) }
	:: atomic { sent[t] && sent[t] != 3 && sent[t] == granted[t] ->
		ask(t, 1 - EARLIER(t));
		sent[t] = 3 }
#else
	:: atomic { !sent[t] -> ask(t, 0); ask(t, 1); sent[t] = 1 }
#endif
	:: atomic { IS_REFUSED(t, 0) -> ask_again(t, 0) }
	:: atomic { IS_REFUSED(t, 1) -> ask_again(t, 1) }
#ifdef WITHOUT_NEW_ROW_KEY
	:: atomic { !(granted[t] & 1) && holder[0] == t -> granted[t] = granted[t] | 1 }
	:: atomic { !(granted[t] & 2) && holder[1] == t -> granted[t] = granted[t] | 2 }
	:: atomic { sent[t] && !retried[t] ->
		retried[t] = 1; sent[t] = 0; granted[t] = 0; C[t] = 1; goto again }
#endif
	/* Once its row and its locks are acknowledged; the row may be aborted, poisoned or lost since. */
	:: atomic { MAY_DECIDE(t) && IS_ACKNOWLEDGED(t) ->
		SENT_DECISION(t);
		if
		:: status[t] == 0 ->
			if
			:: decide(t);
				if
				:: yes[t] = 1; goto ended
				:: goto doubt /* it was sent twice, and the second answer is no */
				fi
			:: goto lost
			fi
#ifdef WITHOUT_COMPARED_DECISION
		:: 0 < status[t] && status[t] < ABSENT -> decide(t); yes[t] = 1; goto ended
#endif
		:: else -> goto doubt
		fi }
	:: atomic { give_up(t); goto given_up }
	od;

doubt: /* a "no" is settled by reading; of a row that is gone nothing is known */
	atomic {
		if
#ifndef WITHOUT_READING_FENCED_NO
		:: status[t] == 2 || status[t] == 5 || IS_UNKNOWN(t) ->
#ifdef OWN_READ_IS_YES
			yes[t] = decided[t];
#endif
			goto ended
#endif
#ifdef LOSES
		/* A crash has lost the row, and a late duplicate has brought it back. */
		:: status[t] == 0 -> goto lost
#endif
		:: else -> give_up(t); goto given_up
		fi
	};

lost: /* 0 after a lost answer settles nothing: the request may still be on its way */
	atomic {
#ifdef WITHOUT_UNKNOWN_FENCED
		report_failure(t);
#endif
		status[t] == 0 -> decide(t)
	};
ended:
	false;

given_up: /* it alone decides, so it frees its locks, whether or not its row has come */
#ifdef NO_OWN_RELEASE
	false
#else
	do
	:: atomic { holder[0] == t -> release(0) }
	:: atomic { holder[1] == t -> release(1) }
	od
#endif
}

/* A transaction without a row: reads, and one request to its region, which compares all locks, and
 * writes values and next locks. Anybody sends it. */
#define CAN_BE_GRANTED(t, k) (holder[k] == 0 && n[k] == n_read[UNIT(t, k)])
#define IS_NEXT(t, k) (n[k] == n_read[UNIT(t, k)] + 1)
#ifdef WITHOUT_NAMES
#define IS_MINE(t, k) (holder[k] == 0)
#else
#define IS_MINE(t, k) (by[k] == (t))
#endif
#ifdef WITHOUT_ASSERTED_CONDITIONS
#define COMPARES(t, k) WRITES(t, k)
#else
#define COMPARES(t, k) NEEDS(t, k)
#endif
#define IS_AS_READ(t, k) (!COMPARES(t, k) || CAN_BE_GRANTED(t, k) && !IS_STALE(t, k))
#define CAN_COMMIT(t) (sent[t] && IS_AS_READ(t, 0) && IS_AS_READ(t, 1))

inline look_whose(t, k) { /* after no answer, or a refusal, at a lock that it writes */
	if
	:: n[k] == n_read[UNIT(t, k)] && is_refused && !IS_STALE(t, k) -> goto refused
#ifdef WITHOUT_LOOKING_AFTER_REFUSAL
	:: n[k] == n_read[UNIT(t, k)] -> is_unchanged = 1
#endif
#ifdef WITHOUT_LOOKING_WHOSE
	:: n[k] != n_read[UNIT(t, k)] -> goto refused
#endif
	:: IS_NEXT(t, k) && IS_MINE(t, k) -> must(TRUE_REPORT, decided[t]); goto ended
	:: IS_NEXT(t, k) && !IS_MINE(t, k) && !IS_STALE(t, k) -> goto refused
#ifdef WITHOUT_UNKNOWN_ROWLESS
	:: n[k] > n_read[UNIT(t, k)] + 1 -> goto refused
#endif
	:: else /* as it was, and nothing is settled; or others have come since: unknown */
	fi
}

inline fence(k) { /* it only counts a lock that the request compares */
	put_lock(k, NEXT(n[k]), 0, 0, C[2]);
	is_fenced = 1;
	goto refused
}

proctype Rowless(byte t) {
	byte done;
	bit is_refused, is_unchanged, is_fenced;
again:
	read_units(t);
#ifdef SPLIT
	if
	:: sent[t] = 1
	:: atomic { t == 2 -> C[3] = C[2]; run Owner(3); goto ended } /* nothing is in flight */
	fi;
#else
	sent[t] = 1;
#endif
	do
	/* A refusal: by now it has taken effect, as each lock that it writes shows from here on, or never
	 * will. Without a lock that it only asserts, the locks show that anyway. */
	:: atomic { (OP(t, 0) == ASSERT || OP(t, 1) == ASSERT) && !is_refused && !CAN_COMMIT(t) ->
		is_refused = 1;
		if
		:: is_unchanged -> goto refused
		:: else
		fi }
	:: atomic { WRITES(t, 0) -> look_whose(t, 0) }
	:: atomic { WRITES(t, 1) -> look_whose(t, 1) }
#ifdef SPLIT /* and an earlier request may be in flight */
#ifdef WITHOUT_FENCE
	:: atomic { t == 2 -> C[3] = C[2]; run Owner(3); goto ended }
#endif
	:: atomic { t == 2 && !is_fenced && WRITES(2, 0) && CAN_BE_GRANTED(2, 0) -> fence(0) }
	:: atomic { t == 2 && !is_fenced && WRITES(2, 1) && CAN_BE_GRANTED(2, 1) -> fence(1) }
#endif
	od;
refused:
	atomic {
		must(TRUE_REPORT, !decided[t] && !CAN_COMMIT(t));
		is_refused = 0; is_unchanged = 0;
		if
		:: give_up(t); goto ended
		:: sent[t] = 0; goto again /* read and evaluate again */
		fi
	};
ended:
	false
}
#endif

/* ------------------------------------------------------------------------------- anybody */

/* The owner after its decision, who meets a lock, fsck, and late duplicates of all their requests,
 * any number of times. What was seen before is not asked: a status that allows a request allows it for
 * ever after. The exception is the owner's own finish, which compares nothing: it is sent soon after
 * the decision and lands within a request's life, so before a marker above it is dropped. */
#ifdef WITHOUT_LASTING_MARKERS
#define IN_FLIGHT(t, k) true
#else
#define IN_FLIGHT(t, k) (C[t] > purged[k])
#endif
#define HOLDS(t, k) (!NEEDS(t, k) || holder[k] == t)
#define IS_FINISHED(t, k) (!NEEDS(t, k) || holder[k] != t)
/* Who frees has seen it so, poison too, just now or some time ago. */
#define IS_OVER(t) (status[t] != 0 && status[t] != 2 && status[t] != 5 && status[t] != ABSENT)
#ifdef WITHOUT_ABORT_BEFORE_RELEASE
#define MAY_BE_FREED(t) (status[t] == 0 || IS_OVER(t))
#elif defined(WITHOUT_FINISHING_THE_DECIDED)
#define MAY_BE_FREED(t) (status[t] == 2 || status[t] == 5 || IS_OVER(t))
#else
#define MAY_BE_FREED(t) (IS_OVER(t) || rewritten[t])
#endif
#ifdef WITHOUT_ONLY_OWN_FINISH
#define FINISHES_BLINDLY(t, k) decided[t]
#else
#define FINISHES_BLINDLY(t, k) (yes[t] && IN_FLIGHT(t, k))
#endif

#ifdef READS
#ifdef MUTUAL /* it asserts that the unit is as it was at first */
#define IS_TRUE_OF(t, k) (OP(t, k) != ASSERT || value[k] == was[k])
#else
#define IS_TRUE_OF(t, k) true
#endif
#define CAN_BE_READ(t, k) (!NEEDS(t, k) || holder[k] == 0 && IS_TRUE_OF(t, k))
inline read_needed(t, k) {
	if
	:: NEEDS(t, k) -> read_unit(t, k)
	:: else
	fi
}
#define LAST_OF_ALL GONE
#else
#define LAST_OF_ALL PURGED
#endif

proctype Anybody() {
	byte t, k, c;
	do
	:: atomic {
		select(t : 1 .. TRANSACTIONS);
		select(k : 0 .. 1);
		if
		/* The row's first write lands; late, below what is there, or masked, it does nothing. */
		:: !IS_ROWLESS(t) && k == 0 && status[t] == ABSENT && IS_ROW_SENT(t) -> status[t] = 0
#ifdef WITHOUT_POISON_ABOVE
		:: k == 0 && status[t] == 7 && poisoned[t] && IS_ROW_SENT(t) -> status[t] = 0; poisoned[t] = 0
#endif
#ifdef READS
		/* It reads and asks for a lock in one step: the counter proves that the unit is as it was. */
		:: NEEDS(t, k) && !(sent[t] & BIT(k)) && holder[k] == 0 && !IS_ROWLESS(t) ->
			read_unit(t, k);
			sent[t] = sent[t] | BIT(k);
			grant(t, k, c)
		:: k == 0 && IS_ROWLESS(t) && !sent[t] && CAN_BE_READ(t, 0) && CAN_BE_READ(t, 1) ->
			sent[t] = 1;
			read_needed(t, 0);
			read_needed(t, 1);
			commit_rowless(t)
#ifdef KEYS
		/* It reads the other's unit before it asks for anything, and looks whether it was taken since. */
		:: k == 2 - t && VALIDATES(t) && !sent[t] && holder[k] == 0 && value[k] == was[k] ->
			n_read[UNIT(t, k)] = n[k];
			evaluated[t] = 1
		:: k == 2 - t && VALIDATES(t) && evaluated[t] && MAY_VALIDATE(t) && IS_UNTAKEN(t, k) ->
			validated[t] = 1
#endif
		:: k == 0 && status[t] == 0 && !decided[t] && HOLDS(t, 0) && HOLDS(t, 1) && IS_VALID(t) ->
			decide(t);
			yes[t] = 1
#else
		/* A lock request lands, the first time or later. */
		:: SENT(t, k) && NEEDS(t, k) && !IS_ROWLESS(t) && !IS_STALE(t, k) && CAN_BE_GRANTED(t, k) ->
			grant(t, k, c)
		:: k == 0 && IS_ROWLESS(t) && CAN_COMMIT(t) -> commit_rowless(t)
#endif
		/* Aborting a living transaction is safe: no lease is modelled. */
		:: k == 0 && status[t] == 0 -> status[t] = 6
		/* Poison, by who has met a lock and no row of it, just now or some time ago: absent to 7. */
#ifdef WITHOUT_POISON
		:: k == 0 && holder[0] == t && status[t] == ABSENT -> met_absent[t] = 1
		:: holder[k] == t && met_absent[t] -> release(k)
#elif defined(WITHOUT_COMPARED_POISON)
		:: k == 0 && holder[0] == t && status[t] == ABSENT -> met_absent[t] = 1
		:: k == 0 && met_absent[t] && status[t] < ABSENT -> status[t] = 7
#else
		:: k == 0 && status[t] == ABSENT -> poison(t)
		/* At GONE the compare says yes, and nothing is seen. For NAMELESS it has to have decided: else 7. */
		:: k == 0 && status[t] == LAST_OF_ALL && !IS_ROWLESS(t) ->
			status[t] = (decided[t] -> NAMELESS : 7)
#endif
		:: holder[k] == t && MAY_BE_FREED(t) -> release(k)
		:: k == 0 && (status[t] == 6 || rewritten[t]) -> status[t] = 7
		/* The finish: of anybody, compared; of the owner that heard "yes", whatever is there. */
		:: NEEDS(t, k) && decided[t] && holder[k] == t && !IS_ROWLESS(t) -> finish(t, k)
		:: NEEDS(t, k) && FINISHES_BLINDLY(t, k) -> finish(t, k)
#ifdef WITHOUT_VALUE_AND_LOCK_TOGETHER
		:: NEEDS(t, k) && decided[t] && holder[k] == t -> free_lock(t, k)
#endif
#ifdef WITHOUT_FINISH_BEFORE_COMPLETE
		:: k == 0 && status[t] == 2 -> status[t] = 5
#else
		:: k == 0 && status[t] == 2 && IS_FINISHED(t, 0) && IS_FINISHED(t, 1) ->
			status[t] = 5;
			ENDS_DURING_A_READ(t)
#endif
#ifdef WITHOUT_STATUS_TIMES
		/* A late duplicate of the row's first write, at the server's time. */
		:: k == 0 && status[t] < ABSENT -> status[t] = 0
#endif
		/* fsck deletes a row that is old enough; a compaction drops its marker. Who was paused puts 5 or
		 * 7 then: a row without a buffer, which is deleted again. */
#ifndef NO_DELETED_ROWS
		:: k == 0 && (status[t] == 5 || status[t] == 7 || status[t] == NAMELESS) && IS_OLD(t) ->
			status[t] = GONE
#endif
#ifndef READS /* for a reader both are no row */
		:: k == 0 && status[t] == GONE -> status[t] = PURGED
#endif
#ifdef LOSES
		/* A crash loses the row's first write, or 5; what was sent may come late. */
		:: k == 0 && status[t] == 0 && !rewritten[t] && MAY_BE_LOST(t) -> status[t] = ABSENT
		:: k == 0 && status[t] == 5 -> status[t] = 2
		:: k == 0 && status[t] == 0 && asked[t] && !decided[t] -> decide(t)
#ifdef WITHOUT_SYNCED_POISON
		:: k == 0 && status[t] == 7 && poisoned[t] -> status[t] = ABSENT; poisoned[t] = 0
#endif
#ifdef WITHOUT_SYNCED_ABORT
		:: k == 0 && status[t] == 6 -> status[t] = 0
#endif
#else
		:: k == 0 && status[t] == LAST_OF_ALL && !IS_ROWLESS(t) -> status[t] = (decided[t] -> 5 : 7)
#endif
#ifdef WITHOUT_ROW_MARKER
		/* A late duplicate of the row's first write. */
		:: k == 0 && status[t] == GONE -> status[t] = 0
#endif
		/* A major compaction. */
		:: t == 1 && marker_ts[k] != 0 ->
			purged[k] = MAX(purged[k], marker_ts[k]);
			marker_ts[k] = 0
#ifdef RETIRES
		:: t == 1 && k == 0 && holder[0] == 0 && n[0] != 0 && value[0] == 0 -> retire(c); c = 0
		/* A compaction drops no marker before the older one of x. */
		:: t == 1 && k == 0 && lock_marker && !marker_ts[0] -> lock_marker = 0
#endif
		:: else
		fi;
		t = 0; k = 0
	}
	od
}

#ifdef READS
#include "fenced_reader.pml"
#else
#include "fenced_fsck.pml"
#endif

init {
	byte t;
	atomic {
#ifndef X_IS_ABSENT
		value[0] = FIRST; value_ts[0] = 1; n[0] = 1; lock_ts[0] = 1;
		want[0] = FIRST;
#ifdef READS
		was[0] = FIRST;
#endif
#endif
		for (t : 1 .. TRANSACTIONS) {
			if
			:: IS_ROWLESS(t) -> status[t] = PURGED
			:: else
			fi;
#ifndef READS
			if /* its clock */
			:: C[t] = 1
			:: C[t] = AHEAD
			fi;
			if
			:: IS_ROWLESS(t) -> run Rowless(t)
			:: IS_ATTEMPT(t) -> C[t] = 0
			:: else -> run Owner(t)
			fi
#endif
		}
		t = 0;
		run Anybody();
#ifdef READS
		run Reader();
#else
		run Fsck()
#endif
	}
}
