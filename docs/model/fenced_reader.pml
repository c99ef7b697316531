/* Atomic reads, any number of them: each unit's lock and value (c1), the holders' rows (s1), the locks
 * again (c2), and the rows again (s2) where there are two holders. With ONE_ROW both units are families
 * of one row, read at one instant: then a second look is needed only if a holder may have decided. */

#define NO_ROW    1
#define BEFORE    2
#define AT_2      3
#define PAST_2    4
#define CLASS(s) ((s) == ABSENT || (s) == GONE -> NO_ROW \
	: ((s) == 2 -> AT_2 : ((s) == 5 -> PAST_2 : BEFORE)))
#ifdef BUFFER_AT_5
#define SPEAKS(r) ((r) == AT_2 || (r) == PAST_2)
#else
#define SPEAKS(r) ((r) == AT_2)
#endif
#define IS_MET(t)   (holders[0] == (t) || holders[1] == (t))
#define READ_AS(k)  (holders[k] && SPEAKS(row[holders[k]]) -> AFTER(holders[k], k, cell[k]) : cell[k])
#define IS_STATE(m) (since <= (m) && (m) <= decisions \
	&& READ_AS(0) == was[2 * (m)] && READ_AS(1) == was[2 * (m) + 1])
#define TWO_HOLDERS (holders[0] && holders[1] && holders[0] != holders[1])

/* Each look is a batch: its items are read in any order, one by one. */

inline look(k, mask) { /* c1 */
	if
	:: !done -> since = decisions
	:: else
	fi;
#ifndef WITHOUT_BOUNDED_LOOKS
	reading = 1;
#endif
	cell[k] = value[k];
	counter[k] = n[k];
	holders[k] = holder[k];
	done = done | mask
}

inline look_again(k) { /* c2 */
	if
	:: counter[k] == n[k] && holders[k] == holder[k]
	:: else -> goto again
	fi
}

#ifdef WITHOUT_LOOK_WHERE_HELD
#define IS_ENOUGH true
#elif defined(ONE_ROW)
#define IS_ENOUGH (!holders[0] && !holders[1])
#else
#define IS_ENOUGH false
#endif
#ifdef ONE_ROW
#define WAS_UNDECIDED(t) (!IS_MET(t) || row[t] == BEFORE)
#define ARE_UNDECIDED (WAS_UNDECIDED(1) && WAS_UNDECIDED(2) && WAS_UNDECIDED(3))
#else
#define ARE_UNDECIDED false
#endif
#ifdef WITHOUT_SECOND_S2
#define S2_DONE true
#else
#define S2_DONE (!TWO_HOLDERS || IS_ASKED(1, 4) && IS_ASKED(2, 8) && IS_ASKED(3, 16))
#endif
#define IS_ASKED(t, mask) (!IS_MET(t) || (done & mask))

/* A transaction that may have validated is not read past. */
#ifdef WITHOUT_WAITING_READERS
#define IS_WITHHELD(t) false
#else
#define IS_WITHHELD(t) (VALIDATES(t) && status[t] == 0)
#endif

inline ask(t) { /* s1 */
	row[t] = CLASS(status[t]);
	if
	:: IS_WITHHELD(t) -> goto again
	:: else
	fi
}

inline look_at_row(t, mask) { /* s2 */
	done = done | mask;
	if
	:: row[t] != CLASS(status[t]) -> goto again
	:: else
	fi
}

proctype Reader() {
	byte cell[2], counter[2], holders[2], row[4], since, done;
c1:
#ifdef ONE_ROW
	atomic { look(0, 1); look(1, 2) };
#else
	do
	:: atomic { !(done & 1) -> look(0, 1) }
	:: atomic { !(done & 2) -> look(1, 2) }
	:: atomic { done == 3 -> break }
	od;
#endif
	atomic { done = 0;
		if
		:: IS_ENOUGH && !holders[0] && !holders[1] -> goto settled
		:: else
		fi };
	do /* s1 */
	:: atomic { IS_MET(1) && !row[1] -> ask(1) }
	:: atomic { IS_MET(2) && !row[2] -> ask(2) }
	:: atomic { IS_MET(3) && !row[3] -> ask(3) }
	:: atomic { (!IS_MET(1) || row[1]) && (!IS_MET(2) || row[2]) && (!IS_MET(3) || row[3]) ->
		if
		:: IS_ENOUGH || ARE_UNDECIDED -> goto settled
		:: else -> break
		fi }
	od;
#ifdef WITHOUT_SECOND_LOOK
	atomic { done = 3 };
#endif
	/* c2 and s2 may be at the same time. */
	do
	:: atomic { !(done & 1) -> done = done | 1; look_again(0) }
	:: atomic { !(done & 2) -> done = done | 2; look_again(1) }
	:: atomic { TWO_HOLDERS && !IS_ASKED(1, 4) -> look_at_row(1, 4) }
	:: atomic { TWO_HOLDERS && !IS_ASKED(2, 8) -> look_at_row(2, 8) }
	:: atomic { TWO_HOLDERS && !IS_ASKED(3, 16) -> look_at_row(3, 16) }
	:: atomic { (done & 3) == 3 && S2_DONE -> done = 0; break }
	od;
settled:
	atomic {
		must(ATOMIC_READ, IS_STATE(0) || IS_STATE(1) || IS_STATE(2) || IS_STATE(3));
#ifdef KEYS
		overtaken[1] = overtaken[1] || READ_AS(1) == 2 && READ_AS(0) == was[0]
#endif
#ifdef MUTUAL
		;
		overtaken[2] = overtaken[2] || READ_AS(0) == 1 && READ_AS(1) == was[1]
#endif
	};
again:
	atomic {
		cell[0] = 0; cell[1] = 0; counter[0] = 0; counter[1] = 0; holders[0] = 0; holders[1] = 0;
		row[1] = 0; row[2] = 0; row[3] = 0; since = 0; done = 0;
#ifndef WITHOUT_BOUNDED_LOOKS
		reading = 0; is_new[1] = 0; is_new[2] = 0; is_new[3] = 0;
#endif
		goto c1
	}
}
