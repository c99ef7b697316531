"""What a run was like, as figures, for a table and for JSON."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from rich.table import Table

from tests.chaos.bank import ACCOUNTS
from tests.chaos.crew import SNAPSHOTS, place_of
from tests.chaos.faults import GATEWAYS, Inflicted
from tests.chaos.run import Result, Tally


def document(result: Result) -> dict[str, Any]:
    """Return the figures. Durations are in seconds."""
    tally = result.tally
    transfers = result.history.transfers()
    by_outcome = Counter(each.outcome for each in transfers)
    unknown = Counter(each.resolved for each in transfers if each.outcome == "unknown")
    servers = Counter(
        f"{each.fault.kind} {name}" for each in result.inflicted for name in each.fault.victims
    )
    reads = result.history.reads()
    totals = sum(len(each.reads) == len(ACCOUNTS) for each in reads)
    return {
        "holds": not result.violations,
        "violations": result.violations,
        "seed": result.plan.seed,
        "seconds": result.plan.seconds,
        "faults": {
            **dict(sorted(tally.hurt.items())),
            **dict(sorted(servers.items())),
        },
        "ended_by_themselves": dict(Counter(result.fallen)),
        "transfers": {
            "committed": by_outcome["committed"],
            "aborted": by_outcome["aborted"],
            "unknown": by_outcome["unknown"],
            "unknown_committed": unknown["committed"],
            "unknown_aborted": unknown["aborted"],
        },
        "committed_by": dict(
            Counter(
                tally.places[place_of(each.name)][0]
                for each in transfers
                if each.outcome == "committed"
            )
        ),
        "atomic_reads_of_all": totals,
        "snapshots": sum(each.name.startswith(SNAPSHOTS) for each in reads),
        "atomic_reads_of_some": len(reads) - totals,
        "reads_left_out": result.unjudged,
        "failed_reads": len(result.history.others["failed"]),
        "fsck_rounds": len(result.history.others["fsck"]),
        "fsck_found": dict(
            sum((Counter(each["found"]) for each in result.history.others["fsck"]), Counter())
        ),
        "longest_stall_s": _longest_stall_s(tally),
        "wait_for_commit_s": _waits_s(result.inflicted, tally),
        "errors": _errors(result),
    }


def table(figures: dict[str, Any]) -> Table:
    """Return the figures as a table of two columns."""
    shown = Table("what", "how much", title="chaos on HBase", title_justify="left")
    for name, value in figures.items():
        if isinstance(value, dict):
            for part, count in value.items():
                shown.add_row(f"{name}: {part}", str(count))
        elif name != "violations":
            shown.add_row(name, str(value))
    return shown


def _longest_stall_s(tally: Tally) -> float:
    """The longest time in which nobody committed anything, from the first fault on."""
    ends = sorted(end for ends in tally.commits.values() for end in ends if end >= tally.hurt_ns)
    gaps = (after - before for before, after in pairwise([tally.hurt_ns, *ends]))
    return round(max(gaps, default=0) / 1e9, 1)


def _waits_s(inflicted: Iterable[Inflicted], tally: Tally) -> dict[str, list[float]]:
    """The median and the longest wait for a commit, by kind of fault: in each fault, that of the
    writer that waited longest, of those whose gateway was hurt, or of all."""
    found: dict[str, list[float]] = {}
    for each in inflicted:
        victims = set(each.fault.victims)
        waits = [
            wait_ns(sorted(ends), each)  # those of several threads are nearly in order
            for place, ends in tally.commits.items()
            if tally.places[place][1] in victims or victims - set(GATEWAYS)
        ]
        kind = " and ".join(name.rstrip("12") for name in each.fault.victims)
        found.setdefault(f"{each.fault.kind} {kind}", []).append(max(waits, default=0) / 1e9)
    return {name: [round(median(times), 1), round(max(times), 1)] for name, times in found.items()}


def wait_ns(ends: Sequence[int], fault: Inflicted) -> int:
    """The longest gap between commits that began while the fault lasted."""
    later = ends[bisect_left(ends, fault.at_ns) :]
    gaps = pairwise([fault.at_ns, *later])
    return max((after - before for before, after in gaps if before < fault.until_ns), default=0)


def _errors(result: Result) -> dict[str, int]:
    """The commonest errors, by their beginnings: what clients must be ready for."""
    texts = [each.error for each in result.history.transfers() if each.error]
    texts += [each["error"] for each in result.history.others["failed"]]
    return dict(Counter(text.partition("=")[0][:80] for text in texts).most_common(12))
