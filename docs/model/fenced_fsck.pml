/* If all clients die here, fsck ends all: asked in every state, of copies of the cells. */

/* Works on copies, and ends in the state in which it began. */
proctype Fsck() {
	byte f, k, end_value[2], end_holder[2];
	do
	:: d_step {
		for (k : 0 .. 1) {
			end_value[k] = value[k]; end_holder[k] = holder[k];
		}
		for (f : 1 .. TRANSACTIONS) {
			must(RECOVERABLE, IS_ROWLESS(f) || !decided[f] || status[f] == 2 || status[f] == 5
				|| status[f] >= GONE);
			/* What is told of the outcome. */
			must(TRUE_REPORT, status[f] < 6 || IS_UNKNOWN(f) || !decided[f]);
			for (k : 0 .. 1) {
				if
				:: holder[k] == f && status[f] == 2 ->
					must(RECOVERABLE, C[f] > marker_ts[k] && C[f] >= value_ts[k] && FREE_TS(f) >= lock_ts[k]);
					end_value[k] = AFTER(f, k, end_value[k]);
					end_holder[k] = 0
				:: holder[k] == f && status[f] != 2 && status[f] != 5 -> end_holder[k] = 0
				:: else
				fi
			}
		}
		for (k : 0 .. 1) {
			must(RECOVERABLE, end_value[k] == want[k] && end_holder[k] == 0);
			end_value[k] = 0; end_holder[k] = 0;
		}
#ifdef WAITS
		must(NO_CIRCLE, !holder[0] || !holder[1] || status[holder[0]] != 0 || status[holder[1]] != 0
			|| !SENT(holder[0], 1) || !SENT(holder[1], 0) || holder[0] == holder[1]
			|| failed[holder[0]] || failed[holder[1]]); /* who has given up does not wait */
#endif
		f = 0; k = 0
	}
	od
}
