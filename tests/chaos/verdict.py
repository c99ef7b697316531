"""What must be true at the end: the histories of the clients against what the store holds.

Nothing is judged from a sample: every transfer that was ever begun is accounted for. Each violation
is a sentence that names the operations, for whoever looks into the histories.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.chaos.bank import ACCOUNTS, BALANCE, FOUNDING, TOTAL, Money, total
from tests.chaos.crew import place_of
from tests.chaos.history import History, Operation
from tests.chaos.order import Versions, transactions, versions
from tests.history.check import check_registers
from txn import Outcome

SHOWN = 10
STOOD_STILL = "pause region"


@dataclass(frozen=True, slots=True)
class Ending:
    """What the store holds once fsck has ended clean.

    receipts: transfer -> the timestamp of its receipt, and payer, payee, amount.
    outcomes: transfer -> its transactions -> what became of each, as `engine.outcome` says.
    """

    accounts: Mapping[str, Money | None]
    receipts: Mapping[str, tuple[int, str, str, int]]
    outcomes: Mapping[str, Mapping[str, Outcome]] = field(default_factory=dict)


def judge(history: History, ending: Ending) -> list[str]:
    """Return what is wrong; an empty list is what everybody hopes for."""
    happened = resolve(history, ending)
    order = versions(happened)
    checks = (
        _totals(history, ending),
        _reports(history, ending),
        _outcomes(history, ending),
        _receipts(history, ending),
        _chains(order, ending),
        _known_versions(history, order),
        _balances(ending),
        _serial(history, happened, order),
        _fsck(history),
    )
    return [violation for found in checks for violation in _first(found)]


def leave_out_stale(history: History, gateways: Container[str]) -> list[Operation]:
    """Take out, and return, the reads of clients in these places, who ask gateways, that a region
    server may have answered after its time: when it went on, having stood still, until it noticed.
    A gateway believes it, and its clients cannot tell. What was read natively is judged.
    """
    stops = [
        (each["start_ns"] + int(each["down_s"] * 1e9), each["end_ns"])
        for each in history.others["fault"]
        if each["op"].startswith(STOOD_STILL)
    ]
    stale = [
        each
        for each in history.reads()
        if place_of(each.name) in gateways
        and any(each.start_ns <= end and (each.end_ns or end) >= start for start, end in stops)
    ]
    for each in stale:
        del history.operations[each.name]
    return stale


def resolve(history: History, ending: Ending) -> list[Operation]:
    """Write into each transfer what its receipt says of it; return those that happened."""
    happened = []
    for each in history.transfers():
        found = ending.receipts.get(each.name)
        each.resolved = "aborted" if found is None else "committed"
        if found is not None:
            each.timestamp = each.timestamp or found[0]
            happened.append(each)
    return happened


def _first(found: Iterable[str]) -> list[str]:
    every = list(found)
    more = len(every) - SHOWN
    return [*every[:SHOWN], f"... and {more} more of these"] if more > 0 else every


def _totals(history: History, ending: Ending) -> Iterator[str]:
    if (end := total(ending.accounts)) != TOTAL:
        yield f"the total is {end} at the end, not {TOTAL}"
    for each in history.reads():
        if len(each.reads) == len(ACCOUNTS) and (seen := total(each.reads)) != TOTAL:
            yield f"read {each.name} saw a total of {seen}, not {TOTAL}"


def _reports(history: History, ending: Ending) -> Iterator[str]:
    """A reported commit is there, at its timestamp; a reported abort is not."""
    for each in history.transfers():
        found = ending.receipts.get(each.name)
        if each.outcome == "committed" and found is None:
            yield f"transfer {each.name} was reported as committed and is lost"
        elif each.outcome == "committed" and found and found[0] != each.timestamp:
            yield f"transfer {each.name} was reported at {each.timestamp} and is at {found[0]}"
        elif each.outcome == "aborted" and found is not None:
            yield f"transfer {each.name} was reported as aborted and is there: {each.error}"


def _outcomes(history: History, ending: Ending) -> Iterator[str]:
    """What `engine.outcome` says of a transfer's transactions is what its receipt says."""
    for each in history.transfers():
        found = ending.outcomes.get(each.name, {})
        committed = [row for row, outcome in found.items() if outcome is Outcome.COMMITTED]
        if len(committed) != (each.name in ending.receipts):
            yield f"transfer {each.name} has {len(committed)} committed transactions: {found}"
        for row, outcome in found.items():
            if outcome not in (Outcome.COMMITTED, Outcome.ABORTED):
                yield f"transaction {row} of transfer {each.name} is {outcome.value} at the end"
        if each.transaction is not None and each.transaction not in found:
            yield f"transfer {each.name} has lost its transaction {each.transaction}"
        elif each.outcome == "committed" and committed not in ([], [each.transaction]):
            yield f"transfer {each.name} committed as {committed}, not as {each.transaction}"


def _receipts(history: History, ending: Ending) -> Iterator[str]:
    for name, (_, *said) in ending.receipts.items():
        each = history.operations.get(name)
        if each is None:
            yield f"receipt {name} is of a transfer that nobody began"
        elif said != [each.payer, each.payee, each.amount]:
            yield f"receipt {name} says {said}"


def _chains(order: Versions, ending: Ending) -> Iterator[str]:
    """Each version was written by somebody who had seen the one before it: no update is lost."""
    for account in ACCOUNTS:
        now: tuple[int, str] | None = (BALANCE, FOUNDING)
        for each in order.get(account, ()):
            if _content(each.reads[account]) != now:
                yield f"transfer {each.name} on {account} had not seen {now}"
            now = _content(each.writes[account])
        if _content(ending.accounts[account]) != now:
            yield f"{account} ends as {ending.accounts[account]}, and {now} was its last version"


def _known_versions(history: History, order: Versions) -> Iterator[str]:
    """What was read had been committed, at that timestamp."""
    known = {
        (account, writer.name): writer.timestamp
        for account, writers in order.items()
        for writer in writers
    }
    for each in history.reads():
        for account, seen in each.reads.items():
            if seen is None or seen.writer == FOUNDING:
                continue
            if known.get((account, seen.writer)) != seen.timestamp:
                yield f"read {each.name} saw {seen} of {account}, which nobody committed"


def _balances(ending: Ending) -> Iterator[str]:
    """The accounts are what the receipts add up to."""
    replayed = dict.fromkeys(ACCOUNTS, BALANCE)
    for _, payer, payee, amount in ending.receipts.values():
        replayed[payer] -= amount
        replayed[payee] += amount
    for account, found in ending.accounts.items():
        if (found.balance if found else 0) != replayed[account]:
            yield f"{account} ends as {found}, and its receipts say {replayed[account]}"


def _serial(history: History, happened: list[Operation], order: Versions) -> Iterator[str]:
    for anomaly in check_registers(transactions([*happened, *history.reads()], order)):
        yield f"not strictly serialisable: {anomaly}"


def _fsck(history: History) -> Iterator[str]:
    """Beside clients that keep to the protocol, fsck finds nothing that it cannot repair."""
    for each in history.others["fsck"]:
        for finding in each["wrong"]:
            yield f"fsck {each['op']} found {finding}"


def _content(found: Money | None) -> tuple[int, str] | None:
    return (found.balance, found.writer) if found else None
