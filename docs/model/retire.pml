/* Retiring x: its lock is taken in the name of nobody who has a row, and then its lock and tag are
 * deleted in one request, on the condition that the lock is still the retirer's. Each request is
 * anybody's, at any time, any number of times; so this is many retirers, and their late duplicates.
 * Whoever meets its lock poisons the row that it names, which nobody ever writes, and then frees it.
 */

#define RETIRER 3

bit due;                     /* a retirer has looked at x, under its lock: */
byte due_tag_ts, due_marker; /* up to where its delete goes: of the tag, of the lock */
byte tag_marker;
byte passed;                 /* ghost: what a reader under way has let pass, in this order: */
#define READING 1
#define CHANGED 2            /* a change of x */
#define LATE    3            /* the retention, after it: x has been retired */

inline look_to_retire() {
	due = 1;
	due_tag_ts = tag_ts[0];
#ifdef WITHOUT_MARKER_ABOVE_TAG
	due_marker = lock_ts[0]
#else
	due_marker = MAX(lock_ts[0], tag_ts[0])
#endif
}

inline retire() {
	if
	:: lock_ts[0] <= due_marker ->
		must(KEEPS_ITS_LOCKS, lock[0] == 0 || lock[0] == RETIRER || IS_PAST_PUT(lock[0]));
		lock[0] = 0;
		lock_ts[0] = 0
	:: else
	fi;
	lock_marker[0] = MAX(lock_marker[0], due_marker);
	if
	:: tag_ts[0] <= due_tag_ts -> tag_ts[0] = 0
	:: else
	fi;
	tag_marker = MAX(tag_marker, due_tag_ts);
#ifndef WITHOUT_RETENTION
	if
	:: passed == CHANGED -> passed = LATE
	:: else
	fi
#endif
}
