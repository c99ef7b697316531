/* If all clients die here, fsck ends all: asked in every state, of copies of the cells. */

inline put_at_the_end(t, k) {
	if
	:: OP(t, k) == PUT && ts[t] > end_marker[k] && ts[t] >= end_ts[k] ->
		end_value[k] = t; end_ts[k] = ts[t]
	:: OP(t, k) == DELETE && ts[t] >= end_ts[k] -> end_value[k] = 0; end_ts[k] = 0
	:: else
	fi
}

/* What is told of the outcome by a row that fsck has deleted, or that was poisoned, then or before. */
#ifdef WITHOUT_UNKNOWN_POISON
#define IS_UNKNOWN(t) HAS_NO_ROW(t)
#else
#define IS_UNKNOWN(t) (HAS_NO_ROW(t) || status[t] == 7 && !buffer[t])
#endif

/* Works on copies, and ends in the state in which it began. */
proctype Fsck() {
	byte f, k, end_value[2], end_ts[2], end_marker[2];
	do
	:: d_step {
		for (k : 0 .. 1) {
			end_value[k] = value[k]; end_ts[k] = value_ts[k]; end_marker[k] = marker_ts[k];
		}
		for (f : 1 .. 2) {
			if
			:: 2 <= status[f] && status[f] <= 4 -> must(RECOVERABLE, buffer[f] && plan[f])
			:: else
			fi;
			if
			:: status[f] == 2 -> put_at_the_end(f, 0); put_at_the_end(f, 1)
			:: else ->
				must(RECOVERABLE, !DECIDED(f) || 2 < status[f] && status[f] < 6 || IS_UNKNOWN(f))
			fi;
			must(TRUE_REPORT, status[f] < 6 || IS_UNKNOWN(f) || !DECIDED(f))
		}
		must(RECOVERABLE, end_value[0] == LOGICAL(decisions, 0));
		must(RECOVERABLE, end_value[1] == LOGICAL(decisions, 1));
		for (k : 0 .. 1) {
			end_value[k] = 0; end_ts[k] = 0; end_marker[k] = 0;
		}
		f = 0; k = 0
	}
	od
}
