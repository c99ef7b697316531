/* Retiring x: fsck deletes the free lock of a deleted unit, which has not changed for the retention. It
 * is one request: if the lock is still the free value that was read, delete it up to its timestamp. So
 * the unit counts from 0 again. What makes up for that is time, between the last change and this:
 *  - no request is under way any more, and an owner that has read x has asked for its lock, or gives up;
 *  - no clock lies as far behind, so who reads x now has a clock above all that was there.
 */

byte lock_marker;
bit has_read[4], stale[4]; /* ghosts, of an owner: it has read x; and did so before x was retired */

#ifdef WITHOUT_TIMELY_LOCKS
#define IS_STALE(t, k) false
#else
#define IS_STALE(t, k) ((k) == 0 && stale[t])
#endif

inline retire(t) {
	must(KEEPS_ITS_LOCKS, holder[0] == 0);
	lock_marker = MAX(lock_marker, lock_ts[0]);
	purged[0] = MAX(purged[0], lock_ts[0]);
	n[0] = 0; by[0] = 0; lock_ts[0] = 0;
	for (t : 1 .. TRANSACTIONS) {
		stale[t] = has_read[t]
	}
}

inline pass_time(t, k) {
	if
	:: (k) == 0 -> has_read[t] = 1; stale[t] = 0
	:: else
	fi;
#ifndef WITHOUT_CLOCK_OF_TODAY
	if
	:: (k) == 0 -> C[t] = MAX(C[t], 1 + lock_marker)
	:: else
	fi
#endif
}
