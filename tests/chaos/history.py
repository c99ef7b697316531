"""What clients did, as they saw it: one file of JSON lines for each process, kept by appending.

A line is on its way to the file before the store hears of the transfer, so a killed client has told
all. Each transfer of a batch has lines of its own, with the batch's begin and end. Times are
nanoseconds of the machine's monotonic clock, which its processes share: whatever ended before
something else started did happen before it. The lines:

    {"op", "kind": "transfer", "start_ns", "payer", "payee", "amount", "reads", "writes"}
    {"op", "end_ns", "outcome", "transaction", "timestamp", "error"}       of the same transfer
    {"op", "kind": "read", "start_ns", "end_ns", "reads"}    one atomic read, or one in tasks as of
                                                             an instant that was found by end_ns
    {"op", "kind": "failed", "start_ns", "end_ns", "error"}                a read that did not come
    {"op", "kind": "fsck", "start_ns", "end_ns", "found", "wrong"}         a round of fsck
    {"op", "kind": "fault", "start_ns", "end_ns", "down_s"}        servers were hurt so long; they
                                                                   are up again by the end
    {"op", "resolved", "timestamp"}             by the judge, at the end: what became of a transfer

reads and writes: account -> [balance, writer, timestamp], or null for an account without a cell;
the timestamps of writes are 0, since a commit's is known only afterwards. The writer is the `op`
that wrote the version. outcome: committed, aborted, or unknown; a transfer without a second line is
unknown as well.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.bank import Money, Transfer

Reads = Mapping[str, Money | None]


def now_ns() -> int:
    return time.monotonic_ns()


@dataclass(slots=True)
class Operation:
    """A transfer, or an atomic read, of one client. `end_ns` is None where nobody knows."""

    name: str
    kind: str
    start_ns: int
    end_ns: int | None = None
    outcome: str = "unknown"
    reads: Reads = field(default_factory=dict)
    writes: Reads = field(default_factory=dict)
    amount: int = 0
    payer: str = ""
    payee: str = ""
    transaction: str | None = None
    timestamp: int | None = None
    error: str | None = None
    resolved: str | None = None

    @property
    def is_committed(self) -> bool:
        """Whether it has happened, as reported or, where nothing was, as found at the end."""
        return "committed" in (self.outcome, self.resolved)


class Log:
    """One process's history. Each line is a single write, which a kill does not split."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def begin(self, transfer: Transfer, start_ns: int) -> None:
        self.write(
            transfer.name,
            kind="transfer",
            start_ns=start_ns,
            payer=transfer.payer,
            payee=transfer.payee,
            amount=transfer.amount,
            reads=transfer.reads,
            writes=transfer.writes,
        )

    def end(self, name: str, outcome: str, **facts: object) -> None:
        self.write(name, end_ns=now_ns(), outcome=outcome, **facts)

    def did(
        self, name: str, kind: str, start_ns: int, end_ns: int | None = None, **facts: object
    ) -> None:
        self.write(name, kind=kind, start_ns=start_ns, end_ns=end_ns or now_ns(), **facts)

    def write(self, name: str, **facts: object) -> None:
        line = json.dumps({"op": name, **facts}) + "\n"
        os.write(self._file, line.encode())


@dataclass(slots=True)
class History:
    """The operations of all processes, by name, and what else they said, by its kind."""

    operations: dict[str, Operation] = field(default_factory=dict)
    others: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, line: Mapping[str, Any]) -> Operation | None:
        """Take a line; return the operation that it is about, if any."""
        name, kind = line["op"], line.get("kind")
        if kind not in (None, "transfer", "read"):
            self.others[kind].append(dict(line))
            return None
        if kind is not None:
            operation = self.operations[name] = Operation(name, kind, line["start_ns"])
        operation = self.operations[name]
        for fact, value in line.items():
            if fact in ("reads", "writes"):
                setattr(operation, fact, _versions(value))
            elif fact not in ("op", "kind"):
                setattr(operation, fact, value)
        return operation

    def transfers(self) -> list[Operation]:
        return [each for each in self.operations.values() if each.kind == "transfer"]

    def reads(self) -> list[Operation]:
        return [each for each in self.operations.values() if each.kind == "read"]


class Tail:
    """Follows the files of a folder while they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that are complete and new, file by file."""
        for path in sorted(self._folder.glob("*.jsonl")):
            at = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(at)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = at + len(whole)
            for line in whole.splitlines():
                yield json.loads(line)


def load(folder: Path) -> History:
    """Read all the histories in a folder."""
    history = History()
    for line in sorted(Tail(folder).lines(), key=lambda line: "resolved" in line):
        history.add(line)
    return history


def _versions(given: Mapping[str, list[Any] | None]) -> Reads:
    return {name: None if found is None else Money(*found) for name, found in given.items()}
