/* The properties of both protocols' models, by their numbers; README.md says what each means. */

/* A violated assertion prints its text, and so the number. -DONLY=n asks for one property only. */
#ifndef ONLY
#define ONLY 0
#endif
#define must(name, condition) assert((ONLY && ONLY != name) || (condition))
#define SERIALISABLE     1 /* what was read under the locks is true at the decision */
#define HOLDS_ITS_LOCKS  2 /* a transaction that decides holds all its locks */
#define KEEPS_ITS_LOCKS  3 /* no lock is taken from a transaction that may still need it */
#define LAST_COMMIT_SEEN 4 /* a key that is freed has the value of its last commit */
#define ATOMIC_READ      5 /* a reader sees a state between two decisions, none older than itself */
#define TRUE_REPORT      6 /* who was told that nothing was written never commits */
#define ABOVE_ALL        7 /* a commit's timestamp is above all that its keys have */
#define RANGES_HOLD      9 /* who scanned a range comes before what it has not found there */
#define RECOVERABLE      8 /* fsck ends all: the decided are whole, the others leave nothing */
#define NO_CIRCLE       10 /* who waits for each other's locks is no circle */
#define INSTANT         11 /* a snapshot shows the state at its instant, which there was */
#define COMMITS_ONCE    12 /* no transaction commits twice */
