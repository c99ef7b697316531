/* What a crash of a server loses: the tail of the log of a row, of a transaction or of a key. A write is
 * deferred or synced; a synced one makes all that was written to its row before it last. At any time a row
 * may go back to what lasts. Deferred are a row's first write, 1-LOCKED, 4-CLEANING, 5-COMPLETE,
 * 7-ABORTED after 6, and unlocks. Any of these may also have been kept: then it is as if it came again.
 */

#ifdef LOSES
byte kept[3] = ABSENT;               /* the status that lasts */
byte kept_lock[2], kept_lock_ts[2];  /* the lock that lasts */
bit stepped[3], asked[3];            /* 1-LOCKED, or the decision, has been sent, and may come late */
#define SENT(what, t) what[t] = 1
#define SYNC(t)       kept[t] = status[t]
#define SYNC_KEY(k)   kept_lock[k] = lock[k]; kept_lock_ts[k] = lock_ts[k]

inline lose_row(t) {
	status[t] = kept[t];
	buffer[t] = buffer[t] && !HAS_NO_ROW(t);
	plan[t] = plan[t] && status[t] >= 2 && !HAS_NO_ROW(t)
}

inline lose_unlock(k) {
	lock[k] = kept_lock[k];
	lock_ts[k] = kept_lock_ts[k]
}
#else
#define SENT(what, t) skip
#define SYNC(t)       skip
#define SYNC_KEY(k)   skip
#endif

#ifdef WITHOUT_SYNCED_LOCKS
#define SYNC_LOCK(k, holder) skip
#elif defined(LOSES)
#define SYNC_LOCK(k, holder) if :: holder -> SYNC_KEY(k) :: else fi
#else
#define SYNC_LOCK(k, holder) skip
#endif
#ifdef WITHOUT_SYNCED_POISON
#define SYNC_POISON(t) skip
#else
#define SYNC_POISON(t) SYNC(t)
#endif
/* Readers go by 1-LOCKED of a transaction that validates ranges, and by 0-WRITTEN of one that
 * validates keys. */
#if defined(LOSES) && defined(RANGES) && !defined(WITHOUT_SYNCED_STEP)
#define SYNC_STEP(t) if :: VALIDATES(t) -> SYNC(t) :: else fi
#else
#define SYNC_STEP(t) skip
#endif
#if defined(LOSES) && defined(KEYS) && !defined(WITHOUT_SYNCED_WRITE)
#define SYNC_WRITE(t) if :: VALIDATES(t) -> SYNC(t) :: else fi
#else
#define SYNC_WRITE(t) skip
#endif
#ifdef WITHOUT_SYNCED_DECISION
#define SYNC_DECISION(t) skip
#else
#define SYNC_DECISION(t) SYNC(t)
#endif
#ifdef WITHOUT_SYNCED_PUT
#define SYNC_PUT(t) skip
#else
#define SYNC_PUT(t) SYNC(t)
#endif
#ifdef WITHOUT_SYNCED_ABORT
#define SYNC_ABORT(t) skip
#else
#define SYNC_ABORT(t) SYNC(t)
#endif
