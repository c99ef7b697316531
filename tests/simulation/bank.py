"""Transfers between accounts, and the judgement of what their clients were told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise, product
from random import Random

from tests.simulation.world import LOGS, TABLE, key
from txn import Cell, Committed, Delete, Engine, Key, Mutation, Request
from txn.assertions import Assertion, Exact, Not, Some, Version, holds, list_keys
from txn.errors import CommitOutcomeUnknown, StoreError, TxnError
from txn.request import Ack

START = 100
Balances = Mapping[Key, Cell | None]
Cut = tuple[int, ...]
Commit = Callable[[Request], Committed]


@dataclass(frozen=True, slots=True)
class Change:
    """What an attempt does to one account."""

    account: int
    old: int
    new: int


@dataclass(slots=True)
class Attempt:
    """One call of commit, or one request of commit_many, and what its client was told."""

    log: Key
    changes: tuple[Change, ...]
    once: str | None
    watched: tuple[Assertion, ...] = ()
    ended: int | None = None
    result: Committed | TxnError | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """An atomic read of all accounts, and between which steps it happened."""

    began: int
    ended: int
    cells: tuple[Cell | None, ...]


@dataclass(slots=True)
class Bank:
    """The accounts, what is done with them, and the record."""

    size: int
    rows: int
    random: Random
    step: Callable[[], int]
    watching: Random | None = None
    is_near: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)

    @property
    def accounts(self) -> list[Key]:
        return [key(f"bank-{i % self.rows}", f"account-{i}") for i in range(self.size)]

    def open(self, engine: Engine) -> None:
        changes = tuple(Change(i, 0, START) for i in range(self.size))
        attempt = self._attempt(changes, None)
        attempt.result = engine.commit(self._mutations(attempt))
        attempt.ended = self.step()

    def look(self, engine: Engine) -> list[Cell | None] | None:
        began = self.step()
        try:
            found = engine.read(self.accounts)
        except TxnError:
            return None
        cells = [found[account] for account in self.accounts]
        self.reads.append(Read(began, self.step(), tuple(cells)))
        total = sum(map(balance, cells))
        assert total == START * self.size, f"an atomic read sees a total of {total}: {cells}"
        return cells

    def transfer(self, engine: Engine, ack: Ack, once: str | None) -> None:
        self.transfer_by(
            lambda r: engine.commit(
                r.mutations, r.assertions, once=once, once_content=once, ack=ack
            ),
            engine,
            once,
        )

    def transfer_by(self, commit: Commit, engine: Engine, once: str | None) -> None:
        cells = self.look(engine)
        if cells is None:
            return
        request, attempt = self._request(cells, once)
        try:
            result: Committed | TxnError = commit(request)
        except TxnError as error:
            result = error
        attempt.result, attempt.ended = result, self.step()

    def transfer_many(self, engine: Engine, ack: Ack, tokens: Sequence[str | None]) -> None:
        cells = self.look(engine)
        if cells is None:
            return
        requests, attempts = zip(*(self._request(cells, token) for token in tokens), strict=True)
        try:
            results: Sequence[Committed | TxnError] = engine.commit_many(requests, ack=ack)
        except StoreError as error:  # it could not ask for the tables, and has written nothing
            results = [error] * len(requests)
        for attempt, result in zip(attempts, results, strict=True):
            attempt.result, attempt.ended = result, self.step()

    def _request(self, cells: Sequence[Cell | None], once: str | None) -> tuple[Request, Attempt]:
        random = self.random
        source = random.choice([i for i, cell in enumerate(cells) if cell is not None])
        target = random.choice([i for i in range(self.size) if i != source])
        old = balance(cells[source])
        amount = old if random.random() < 0.4 else random.randint(1, old)
        there = balance(cells[target])
        changes = (Change(source, old, old - amount), Change(target, there, there + amount))
        attempt = self._attempt(changes, once)
        watched = {source, target}
        if random.random() < 0.3:
            watched.add(random.randrange(self.size))
        if self.watching is not None:
            watched.add(self.watching.randrange(self.size))
        assertions = tuple(self._as_seen(i, cells[i]) for i in sorted(watched))
        attempt.watched = assertions
        token = None if once is None else once.encode()
        return Request(self._mutations(attempt), assertions, token), attempt

    def _attempt(self, changes: tuple[Change, ...], once: str | None) -> Attempt:
        number = len(self.attempts)
        is_far = number % 2 and not self.is_near
        log = key(f"log-{number:04}", table=LOGS if is_far else TABLE)
        attempt = Attempt(log, changes, once)
        self.attempts.append(attempt)
        return attempt

    def _mutations(self, attempt: Attempt) -> tuple[Mutation | Delete, ...]:
        accounts = self.accounts
        text = " ".join(f"{c.account}:{c.old}:{c.new}" for c in attempt.changes)
        moves = [
            Mutation(accounts[c.account], b"%d" % c.new) if c.new else Delete(accounts[c.account])
            for c in attempt.changes
        ]
        return (*moves, Mutation(attempt.log, text))

    def _as_seen(self, account: int, cell: Cell | None) -> Assertion:
        name = self.accounts[account]
        if self.random.random() < 0.5:
            return Version(name, None if cell is None else cell.timestamp)
        return Not(Some(name)) if cell is None else Exact(name, cell.value)


def balance(cell: Cell | None) -> int:
    return 0 if cell is None else int(cell.value)


def judge(bank: Bank, stored: Balances, outcome: Callable[[bytes], str]) -> None:
    """Compare the record with what is stored. outcome: what is known of a transaction."""
    logs = {attempt.log: stored[attempt.log] for attempt in bank.attempts}
    for attempt in bank.attempts:
        _judge_reply(attempt, logs, bank.attempts, outcome)
    happened = [attempt for attempt in bank.attempts if logs[attempt.log] is not None]
    histories = [_history(bank, i, happened, logs) for i in range(bank.size)]
    for i, account in enumerate(bank.accounts):
        assert balance(stored[account]) == histories[i][-1][1], f"account {i}: {histories[i]}"
    _judge_order(bank, happened, histories)
    _judge_reads(bank, happened, logs, histories)


def _judge_reply(
    attempt: Attempt,
    logs: Mapping[Key, Cell | None],
    attempts: Sequence[Attempt],
    outcome: Callable[[bytes], str],
) -> None:
    log, result = logs[attempt.log], attempt.result
    if isinstance(result, Committed):
        if result.repeated:
            logs_of_token = [logs[a.log] for a in attempts if a.once == attempt.once]
            there = [cell for cell in logs_of_token if cell is not None]
            assert len(there) == 1, f"{attempt} is repeated, and there are {there}"
            (log,) = there
        assert log is not None, f"a reported commit is missing: {attempt}"
        assert log.timestamp == result.timestamp, f"{attempt} is stored at {log.timestamp}"
    elif isinstance(result, CommitOutcomeUnknown):
        known = outcome(result.transaction)
        expected = "committed" if log else "aborted"
        assert known in ("unknown", expected), f"{attempt} is {known}, its log is {log}"
    elif result is not None:
        assert log is None, f"an attempt that was reported as failed has happened: {attempt}"
    if attempt.once is not None:
        done = [a for a in attempts if a.once == attempt.once and logs[a.log] is not None]
        assert len(done) <= 1, f"it happened more than once: {done}"


def _history(
    bank: Bank, account: int, happened: Sequence[Attempt], logs: Mapping[Key, Cell | None]
) -> list[tuple[int, int, Attempt]]:
    versions = sorted(
        ((_at(a, logs), c) for a in happened for c in a.changes if c.account == account),
        key=lambda version: version[0],
    )
    by_time = {_at(a, logs): a for a in happened if any(c.account == account for c in a.changes)}
    assert len(by_time) == len(versions), f"two commits of account {account} at one time"
    held = 0
    for timestamp, change in versions:
        assert change.old == held, f"lost update of account {account} at {timestamp}: {change}"
        held = change.new
    return [(timestamp, change.new, by_time[timestamp]) for timestamp, change in versions]


def _judge_order(
    bank: Bank, happened: Sequence[Attempt], histories: Sequence[Sequence[tuple[int, int, Attempt]]]
) -> None:
    """Attempts and reads have an order in which each follows what it replaced or saw, and precedes
    what came after that."""
    before: dict[int, set[int]] = {id(each): set() for each in (*happened, *bank.reads)}
    for i, (account, history) in enumerate(zip(bank.accounts, histories, strict=True)):
        writers = [id(attempt) for _, _, attempt in history]
        for earlier, later in pairwise(writers):
            before[later].add(earlier)
        cells = [{account: Cell(b"%d" % held, at) if held else None} for at, held, _ in history]
        saw: list[tuple[int, list[Assertion]]] = [
            (id(read), [Version(account, (cell := read.cells[i]) and cell.timestamp)])
            for read in bank.reads
        ]
        for attempt in happened:
            saw.append((id(attempt), [a for a in attempt.watched if list_keys(a) == [account]]))
        for observer, own in saw:
            held = [n for n, cell in enumerate(cells) if all(holds(a, cell) for a in own)]
            if len(held) == 1 and own and observer not in writers:  # else it is not known which
                before[observer].add(writers[held[0]])
                for later in writers[held[0] + 1 :][:1]:
                    before[later].add(observer)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        raise AssertionError(f"no order explains it: {happened}") from error


def _at(attempt: Attempt, logs: Mapping[Key, Cell | None]) -> int:
    cell = logs[attempt.log]
    assert cell is not None
    return cell.timestamp


def _judge_reads(
    bank: Bank,
    happened: Sequence[Attempt],
    logs: Mapping[Key, Cell | None],
    histories: Sequence[Sequence[tuple[int, int, Attempt]]],
) -> None:
    """Each read is a consistent and recent cut of the histories."""
    place = {
        (id(attempt), i): n
        for i, history in enumerate(histories)
        for n, (_, _, attempt) in enumerate(history)
    }
    floors = [
        (attempt.ended, [place.get((id(attempt), i), 0) for i in range(bank.size)])
        for attempt in happened
        if isinstance(attempt.result, Committed) and attempt.ended is not None
    ]
    for read in sorted(bank.reads, key=lambda read: read.ended):
        floor = [
            max((at[i] for ended, at in floors if ended <= read.began), default=0)
            for i in range(bank.size)
        ]
        cuts = _cuts(read, happened, histories, place, floor)
        assert cuts, f"no instant has what this saw: {read}, not before {floor}"
        floors.append((read.ended, [min(at) for at in zip(*cuts, strict=True)]))


def _cuts(
    read: Read,
    happened: Sequence[Attempt],
    histories: Sequence[Sequence[tuple[int, int, Attempt]]],
    place: Mapping[tuple[int, int], int],
    floor: Sequence[int],
) -> list[Cut]:
    """Return the versions that the read may have seen, each attempt as a whole or not at all."""
    candidates = [
        [
            n
            for n, (timestamp, held, _) in enumerate(history)
            if n >= low and held == balance(cell) and (cell is None or timestamp == cell.timestamp)
        ]
        for history, cell, low in zip(histories, read.cells, floor, strict=True)
    ]
    return [
        cut
        for cut in islice(product(*candidates), 10_000)
        if all(_is_whole(attempt, cut, place) for attempt in happened)
    ]


def _is_whole(attempt: Attempt, cut: Sequence[int], place: Mapping[tuple[int, int], int]) -> bool:
    seen = {cut[c.account] >= place[id(attempt), c.account] for c in attempt.changes}
    return len(seen) <= 1
