/* Atomic reads, any number of them: the values, the locks and tags, the holders; and where that does
 * not settle it, cells and holders again. Of c1 and c2 only values and holders are compared, without
 * timestamps, which is less than the protocol asks for. */

#define NO_ROW    1
#define BEFORE    2
#define AT_2      3
#define PAST_2    4
#define CLASS(s) ((s) >= ABSENT -> NO_ROW : ((s) == 2 -> AT_2 \
	: ((s) > 2 && (s) < 6 -> PAST_2 : BEFORE)))
#define CROSSED(a, b) \
	((a) == NO_ROW || (b) == NO_ROW -> (a) != (b) : ((a) >= AT_2) != ((b) >= AT_2))
#ifdef WITHOUT_ONLY_AT_2
#define SPEAKS(row) ((row) >= AT_2)
#else
#define SPEAKS(row) ((row) == AT_2)
#endif
#define IS_MET(t)   (holder[0] == (t) || holder[1] == (t))
#define READ_AS(k)  (holder[k] && SPEAKS(row[holder[k]]) -> AFTER(holder[k], k, cell[k]) : cell[k])
#define IS_STATE(n) (since <= (n) && (n) <= decisions \
	&& READ_AS(0) == LOGICAL(n, 0) && READ_AS(1) == LOGICAL(n, 1))

/* Each look is a batch: its items are read in any order, one by one. */

inline look(k, mask) { /* c1, of the values */
	cell[k] = value[k];
	cell_ts[k] = value_ts[k];
#ifndef WITHOUT_BOUNDED_LOOKS
	reading = 1;
#endif
#ifdef RETIRES
	passed = MAX(passed, READING);
#endif
	done = done | mask
}

inline look_beside(k, mask) { /* c1, of the locks and tags */
	holder[k] = lock[k];
	tag[k] = tag_ts[k];
#ifndef WITHOUT_WITNESS
	if
	:: tag_ts[k] != 0 && (cell[k] == 0 || cell_ts[k] < tag_ts[k]) -> unsettled = 1
	:: else
	fi;
#endif
	cell_ts[k] = 0;
	done = done | mask
}

inline look_anew(k, mask) { /* c1 again, all of it; settled if locks and tags have not changed */
	cell[k] = value[k];
	if
	:: holder[k] != lock[k] || tag[k] != tag_ts[k] -> unsettled = 1
	:: else
	fi;
	holder[k] = lock[k];
	tag[k] = 0;
	done = done | mask
}

inline look_again(k) { /* c2 */
	if
	:: cell[k] == value[k] && holder[k] == lock[k]
	:: else -> goto again
	fi
}

/* A transaction that may have validated is not read past. */
#ifdef WITHOUT_WAITING_READERS
#define IS_WITHHELD(t) false
#elif defined(KEYS) && !defined(WITHOUT_WAITING_AT_0)
#define IS_WITHHELD(t) (VALIDATES(t) && status[t] < 2)
#else
#define IS_WITHHELD(t) (VALIDATES(t) && status[t] == 1)
#endif

inline ask(t) { /* s1 */
	row[t] = CLASS(status[t]);
	unsettled = unsettled || IS_WITHHELD(t)
}

inline ask_again(t) { /* s2 */
	if
	:: CROSSED(row[t], CLASS(status[t])) || IS_WITHHELD(t) -> goto again
	:: else
	fi
}

#ifdef WITHOUT_C2
#define C2_DONE true
#else
#define C2_DONE ((done & 3) == 3)
#endif
#ifdef WITHOUT_S2
#define S2_DONE true
#else
#define S2_DONE ((!IS_MET(1) || (done & 4)) && (!IS_MET(2) || (done & 8)))
#endif

#ifdef WITHOUT_UNDECIDED
#define IS_SETTLED(t) true
#else
#define IS_SETTLED(t) (!IS_MET(t) || row[t] == BEFORE)
#endif
#ifdef RETIRES
#define IS_RETIRER_MET IS_MET(RETIRER)
#else
#define IS_RETIRER_MET false
#endif

proctype Reader() {
	byte cell[2], cell_ts[2], holder[2], tag[2], row[4], since, done;
	bit unsettled;
c1:
	do
	:: atomic { !(done & 1) -> look(0, 1); if :: done == 1 -> since = decisions :: else fi }
	:: atomic { !(done & 2) -> look(1, 2); if :: done == 2 -> since = decisions :: else fi }
	:: atomic { (done & 3) == 3 && !(done & 4) -> look_beside(0, 4) }
	:: atomic { (done & 3) == 3 && !(done & 8) -> look_beside(1, 8) }
	:: atomic { done == 15 ->
		done = 0;
		if
		:: !unsettled -> tag[0] = 0; tag[1] = 0; goto s1
		:: else -> unsettled = 0; break
		fi }
	od;
	do
	:: atomic { !(done & 1) -> look_anew(0, 1) }
	:: atomic { !(done & 2) -> look_anew(1, 2) }
	:: atomic { done == 3 -> done = 0; break }
	od;
s1:
	do
	:: atomic { IS_MET(1) && !row[1] -> ask(1) }
	:: atomic { IS_MET(2) && !row[2] -> ask(2) }
	:: atomic { (!IS_MET(1) || row[1]) && (!IS_MET(2) || row[2]) ->
		if
		:: !unsettled && IS_SETTLED(1) && IS_SETTLED(2) && !IS_RETIRER_MET -> goto settled
		:: else -> unsettled = 0; break
		fi }
	od;
	/* c2 and s2 may be at the same time. */
	do
#ifndef WITHOUT_C2
	:: atomic { !(done & 1) -> done = done | 1; look_again(0) }
	:: atomic { !(done & 2) -> done = done | 2; look_again(1) }
#endif
#ifndef WITHOUT_S2
	:: atomic { IS_MET(1) && !(done & 4) -> done = done | 4; ask_again(1) }
	:: atomic { IS_MET(2) && !(done & 8) -> done = done | 8; ask_again(2) }
#endif
	:: atomic { C2_DONE && S2_DONE -> done = 0; break }
	od;
settled:
	atomic {
#if defined(RETIRES) && !defined(WITHOUT_BOUNDED_LOOKS)
		if /* its looks lie too far apart */
		:: passed == LATE -> goto again
		:: else
		fi;
#endif
		must(ATOMIC_READ, IS_STATE(0) || IS_STATE(1) || IS_STATE(2));
#ifdef VALIDATED
		overtaken[1] = overtaken[1] || READ_AS(1) == 2 && READ_AS(0) == INITIAL(0)
#endif
#ifdef MUTUAL
		;
		overtaken[2] = overtaken[2] || READ_AS(0) == 1 && READ_AS(1) == INITIAL(1)
#endif
	};
again:
	atomic {
		cell[0] = 0; cell[1] = 0; holder[0] = 0; holder[1] = 0; row[1] = 0; row[2] = 0;
		since = 0; done = 0; unsettled = 0; cell_ts[0] = 0; cell_ts[1] = 0; tag[0] = 0; tag[1] = 0;
#ifndef WITHOUT_BOUNDED_LOOKS
		reading = 0; is_new[1] = 0; is_new[2] = 0;
#endif
#ifdef RETIRES
		passed = 0;
#endif
		goto c1
	}
}
