/* Snapshots of many readers, in both protocols: a task that takes back what was decided after an instant,
 * or, with -DPLANS, the planner that finds the instant. A listing passes one transaction after the other,
 * in any order, and any time lies in between. Transactions are as the other models prove them: here a
 * decision is one step, which puts values; locks order those of a key.
 */

#include "properties.pml"
#if SHAPE == 8    /* three: one puts both keys, one puts x, one deletes x */
#define TRANSACTIONS 3
#define OP(t, k) (((t) == 1) * PUT + ((t) == 2 && (k) == 0) * PUT + ((t) == 3 && (k) == 0) * DELETE)
#elif SHAPE == 10 /* four: the same, and one puts y */
#define TRANSACTIONS 4
#define OP(t, k) (((t) == 1) * PUT + ((t) == 2 && (k) == 0) * PUT + ((t) == 3 && (k) == 0) * DELETE \
	+ ((t) == 4 && (k) == 1) * PUT)
#endif
#define PUT     1
#define DELETE  2
#define ABSENT  0
#define INITIAL 7
#define SIZE    5

#define WITH_EACH(t, what) t = 1; do :: t <= TRANSACTIONS -> what; t++ :: else -> break od

/* A listing: `passed` has a bit for each transaction. */
#define BIT(t)         (1 << (t))
#define PASSES(t)      !(passed & BIT(t)) -> passed = passed | BIT(t)
#define ALL            (BIT(TRANSACTIONS + 1) - 2)
#define LIST(LOOK) \
	passed = 0; \
	do \
	:: atomic { PASSES(1); LOOK(1) } \
	:: atomic { PASSES(2); LOOK(2) } \
	:: atomic { PASSES(3); LOOK(3) } \
	:: atomic { TRANSACTIONS > 3 && PASSES(4); LOOK(4) } \
	:: atomic { passed == ALL -> break } \
	od

#ifndef PLANS
/* ------------------------------------------------------------------------------------- a task */

byte decisions;
byte at[SIZE];            /* its place in the order of decisions; 0: it has not decided */
byte value[2];            /* the transaction whose version it is */
byte replaced[2 * SIZE];
byte was[2];              /* ghost: the values at the instant */
byte instant = 9;         /* how many had decided */
byte cell[2], first[2], found, passed, looks;
bit taken[2];
#define IS_LATER(t)    (at[t] > instant)
#define AGE(version)   (version == INITIAL -> 0 : at[version])

active [TRANSACTIONS] proctype Owner() {
	byte t = _pid + 1;
	atomic {
		decisions++;
		at[t] = decisions;
		if
		:: OP(t, 0) -> replaced[2 * t] = value[0]; value[0] = (OP(t, 0) == PUT -> t : ABSENT)
		:: else
		fi;
		if
		:: OP(t, 1) -> replaced[2 * t + 1] = value[1]; value[1] = (OP(t, 1) == PUT -> t : ABSENT)
		:: else
		fi
	}
}

inline find_later(t) { found = found | (IS_LATER(t) << (t)) }

inline find_first(k) {
	first[k] = 0;
	WITH_EACH(t, if
		:: (found & BIT(t)) && OP(t, k) && (!first[k] || at[t] < at[first[k]]) -> first[k] = t
		:: else
		fi)
}

#ifdef WITHOUT_OLDER_CELLS
#define IS_OLDER(k) false
#else
#define IS_OLDER(k) (cell[k] != ABSENT && AGE(cell[k]) < at[first[k]])
#endif
#define IS_DOUBTFUL(k) (taken[k] && cell[k] == ABSENT && replaced[2 * first[k] + k] != ABSENT)

inline read() {
	atomic { cell[0] = value[0] };
	atomic { cell[1] = value[1] }
}

inline find_taken() {
	find_first(0);
	find_first(1);
	taken[0] = first[0] && !IS_OLDER(0);
	taken[1] = first[1] && !IS_OLDER(1)
}

active proctype Task() {
	byte t;
	if
	:: atomic { decisions == 0 -> value[0] = INITIAL }
	:: true
	fi;
	atomic { instant = decisions; was[0] = value[0]; was[1] = value[1] };
#ifdef WITHOUT_LISTING_AFTER
	LIST(find_later); read();
#else
	read(); LIST(find_later);
#endif
	atomic {
		find_taken();
		looks = IS_DOUBTFUL(0) || IS_DOUBTFUL(1)
	};
#ifndef WITHOUT_SECOND_LISTING
	if
	:: looks -> LIST(find_later)
	:: else
	fi;
#endif
	atomic {
#ifdef WITHOUT_KEYS_FOUND_FIRST
		find_taken();
#else
		find_first(0);
		find_first(1);
#endif
		must(INSTANT, (taken[0] -> replaced[2 * first[0]] : cell[0]) == was[0]);
		must(INSTANT, (taken[1] -> replaced[2 * first[1] + 1] : cell[1]) == was[1])
	}
}

#else
/* --------------------------------------------------------------------------------- the planner
 * The first transaction validates, so its place is before its decision. Of times it matters only whether
 * a server took them after the mark of its region; the last transaction has a region of its own. A server
 * takes the time of a decision before others see it. FENCED: the second owner's clock is ahead, so its
 * decision has a time after all marks; and a late first write takes the time once more.
 */

#define VALIDATES(t) ((t) == 1)
#define REGION(t)    ((t) == TRANSACTIONS)
#ifdef FENCED
#define IS_AHEAD(t)  ((t) == 2)
#else
#define IS_AHEAD(t)  false
#endif

byte status[SIZE];        /* 0, or it is not there; 1: undecided; 2: decided */
byte place[SIZE];         /* ghost: its number in the order of places */
byte places, lowest, highest;
bit is_marked[2];
bit written_late[SIZE], dated_late[SIZE], repeated[SIZE];
bit before[SIZE], placed[SIZE], undecided[SIZE];
bit is_certain = 1;
byte passed;

#define IS_LATE(t)   (dated_late[t] || IS_AHEAD(t))
#ifdef WITHOUT_TIMES_OF_SERVERS
#define DATE(t)      IS_LATE(t)
#else
#define DATE(t)      (dated_late[t] && !IS_AHEAD(t))
#endif
#if !defined(FENCED) || defined(WITHOUT_UNTRUSTED_FIRST_WRITES)
#define FIRST_DATE(t) written_late[t]
#else
#define FIRST_DATE(t) false
#endif
#ifdef WITHOUT_PLACES_BEFORE_DECISIONS
#define IS_OPEN(t)   (status[t] < 2)
#define IS_DATED(t)  (FIRST_DATE(t) || DATE(t))
#else
#define IS_OPEN(t)   (status[t] == 0 || (status[t] == 1 && !VALIDATES(t)))
#define IS_DATED(t)  (FIRST_DATE(t) || (DATE(t) && !VALIDATES(t)))
#endif
#ifdef WITHOUT_REMEMBERED_UNDECIDED
#define IS_COVERED(t) (before[t] || !IS_LATE(t))
#else
#define IS_COVERED(t) (before[t] || (!IS_LATE(t) && !undecided[t]))
#endif

active [TRANSACTIONS] proctype Owner() {
	byte t = _pid + 1;
	atomic { status[t] = 1; written_late[t] = is_marked[REGION(t)] };
	if
	:: atomic { VALIDATES(t) -> places++; place[t] = places }
	:: else
	fi;
	atomic { dated_late[t] = is_marked[REGION(t)] };
	atomic {
		status[t] = 2;
		if
		:: !VALIDATES(t) -> places++; place[t] = places
		:: else
		fi
	}
}

#ifdef FENCED
active proctype Anybody() { /* repeats first writes */
end:	do
	:: atomic { status[1] && !repeated[1] -> repeated[1] = 1; written_late[1] = is_marked[REGION(1)] }
	:: atomic { status[2] && !repeated[2] -> repeated[2] = 1; written_late[2] = is_marked[REGION(2)] }
	:: atomic { status[3] && !repeated[3] -> repeated[3] = 1; written_late[3] = is_marked[REGION(3)] }
	od
}
#endif

inline find_decided(t) { before[t] = status[t] == 2 }

inline find_placed(t) { placed[t] = !IS_OPEN(t) }

inline judge(t) {
	undecided[t] = status[t] == 1;
#ifndef WITHOUT_CERTAINTY
	is_certain = is_certain && (IS_OPEN(t) || before[t] || IS_DATED(t)
		|| (!placed[t] && (status[t] == 1 || IS_LATE(t))))
#endif
}

active proctype Planner() {
	byte t, u;
	LIST(find_decided);
	atomic { lowest = places; is_marked[0] = 1; highest = places };
	atomic { is_marked[1] = 1 };
	LIST(find_placed);
	LIST(judge);
end_uncertain:
	atomic { is_certain -> /* at any time later */
		WITH_EACH(t, if
			:: status[t] == 2 ->
				must(INSTANT, place[t] > lowest || IS_COVERED(t));
				must(INSTANT, place[t] <= highest || !IS_COVERED(t))
			:: else
			fi);
		WITH_EACH(t, WITH_EACH(u, if
			:: t != u && status[t] == 2 && status[u] == 2 && place[t] < place[u] ->
				must(INSTANT, IS_COVERED(t) || !IS_COVERED(u))
			:: else
			fi))
	}
}
#endif
