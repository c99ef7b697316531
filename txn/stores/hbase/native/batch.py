"""Carry out items on the servers with their rows: one request each, repeated for moved rows.

Items that certainly had no effect, because a region moved or a server is busy, are retried until
the deadline. Items that may have taken effect are retried unless they must not be done twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from txn.clock import Clock, limit_due
from txn.errors import MaybeApplied, NotApplied
from txn.policy import Backoff
from txn.stores.hbase.native.connection import RemoteError, RpcCall, RpcConnection
from txn.stores.hbase.native.items import Item
from txn.stores.hbase.native.messages import PB, Cells
from txn.stores.hbase.native.regions import BY_NAME, Location, Regions
from txn.stores.hbase.native.servers import Servers
from txn.stores.hbase.native.target import Address
from txn.stores.hbase.places import cut, first_line

PAUSES = Backoff(first_ms=5, longest_ms=1_000)
ITEMS_A_REQUEST = 2_000
BYTES_A_REQUEST = 8_000_000
WORK_A_REQUEST = 64
"""During one request, the next is built or an answer is read."""
MOST_REQUESTS = 8
"""To one server at a time; beyond that the requests get larger. A server has few threads (30)."""

Entry = list[tuple[int, Item]]
"""Items by position that share an entry of a request: all of one region, or one alone."""


class Shipment(NamedTuple):
    """A request to one server: its entries, and the region of each."""

    server: Address
    regions: list[Location]
    entries: list[Entry]


class Sent(NamedTuple):
    shipment: Shipment
    connection: RpcConnection
    call: RpcCall


class Batches:
    """Carries out items; safe for threads."""

    def __init__(self, servers: Servers, regions: Regions, clock: Clock) -> None:
        self.servers = servers
        self.regions = regions
        self.clock = clock
        self.rng = Random()

    def run(
        self,
        items: Sequence[Item],
        due_ms: int | None = None,
    ) -> list[Any]:
        """Return the answer to each item. A server does the checks of a row in order. What shares a
        list of its region, a read too, may come before checks that precede it.

        due_ms: the deadline of the store's call, if it has begun before.
        Raises RemoteError if a server refuses an item, TableUnavailable, NotApplied if nothing was
        done, and MaybeApplied.
        """
        answers: list[Any] = []
        due_ms = self.due_ms() if due_ms is None else due_ms
        for some in cut(items, lambda item: item.size, BYTES_A_REQUEST, ITEMS_A_REQUEST):
            try:
                answers += _Run(self, some, due_ms).run()
            except NotApplied as error:
                if answers:
                    raise MaybeApplied(str(error)) from error
                raise
        return answers

    def run_in_turn(self, groups: Sequence[Sequence[Item]], due_ms: int) -> list[list[Any]]:
        """Return the answers to groups of reads. No group is read before all earlier ones. If one
        server has all items, one request carries them, and the server keeps their order."""
        items = [item for group in groups for item in group]
        answers = None
        if len(items) <= ITEMS_A_REQUEST:
            answers = _Run(self, items, due_ms).try_in_one_request(groups)
        if answers is None:
            return [self.run(group, due_ms) for group in groups]
        found = iter(answers)
        return [[next(found) for _ in group] for group in groups]

    def try_once(self, items: Sequence[Item], due_ms: int) -> list[Any]:
        """Return the answers to reads that succeed at the first try, and None for the others."""
        return _Run(self, items, due_ms).try_once()

    def due_ms(self) -> int:
        """Return the deadline of a store call that begins now."""
        now_ms = self.clock.monotonic_ms()
        return limit_due(now_ms, now_ms + self.servers.target.timeout_ms)


class _Run:
    def __init__(self, batches: Batches, items: Sequence[Item], due_ms: int) -> None:
        self._servers, self._regions = batches.servers, batches.regions
        self._clock, self._rng = batches.clock, batches.rng
        self._items = items
        self._due_ms = due_ms
        self._flying: list[Sent] = []
        self._answers: dict[int, Any] = {}
        self._gone: set[bytes] = set()  # tables with a region that has moved
        self._is_touched = False  # a request was lost that may have been carried out
        self._cause: Exception | None = None

    def run(self) -> list[Any]:
        """Return the answers. NotApplied means that nothing was done, or will be."""
        try:
            return self._run()
        except NotApplied as error:
            if self._is_touched or self._answers or self._flying:
                raise MaybeApplied(str(error)) from error
            raise
        finally:
            self._drop_all()

    def try_once(self, parts: Iterable[Shipment] | None = None) -> list[Any]:
        """Return the answers to the first try of all items, None for those that failed."""
        try:
            if parts is None:
                parts = _split_all(self._divide(range(len(self._items))))
            self._send(parts)
            self._receive_all()
        finally:
            self._drop_all()
        return [self._answers.get(position) for position in range(len(self._items))]

    def _drop_all(self) -> None:
        for each in self._flying:
            each.connection.drop(each.call)

    def _run(self) -> list[Any]:
        items, answers = self._items, self._answers
        waiting: Sequence[int] = range(len(items))
        for _ in PAUSES.tries(self._clock, self._rng, due_ms=self._due_ms):
            self._send(_split_all(self._divide(waiting)))
            self._receive_all()
            waiting = [position for position in waiting if position not in answers]
            if not waiting:
                return [answers[position] for position in range(len(items))]
            self._prepare_again(waiting)
        raise NotApplied("the servers could not do it in time", cause=_cause(self._cause))

    def try_in_one_request(self, groups: Sequence[Sequence[Item]]) -> list[Any] | None:
        """Return the answers if one request to one server covers all groups, else None."""
        parts: list[Shipment] = []
        begin = 0
        for group in groups:
            parts += self._divide(range(begin, begin + len(group)))
            begin += len(group)
        if len({part.server for part in parts}) != 1:
            return None
        regions = [region for part in parts for region in part.regions]
        entries = [entry for part in parts for entry in part.entries]
        answers = self.try_once([Shipment(parts[0].server, regions, entries)])
        return None if len(self._answers) < len(answers) else answers

    # ------------------------------------------------------------------------------- sending

    def _divide(self, positions: Iterable[int]) -> list[Shipment]:
        """Group items by server and region; items with entries of their own keep their order."""
        parts: dict[Address, Shipment] = {}
        shared: dict[Location, Entry] = {}
        for position in positions:
            item = self._items[position]
            region = self._regions.find(item.table, item.row, self._due_ms)
            entry = None if item.is_apart else shared.get(region)
            if entry is not None:
                entry.append((position, item))
                continue
            entry = [(position, item)]
            if not item.is_apart:
                shared[region] = entry
            part = parts.get(region.server)
            if part is None:
                part = parts[region.server] = Shipment(region.server, [], [])
            part.regions.append(region)
            part.entries.append(entry)
        return list(parts.values())

    def _send(self, parts: Iterable[Shipment]) -> None:
        """Send all possible requests. If a server cannot be reached, forget all its regions and do
        not try it for each part again, because that may take long."""
        gone: set[Address] = set()
        for part in parts:
            if part.server in gone:
                continue
            request = _make_request(part)
            try:
                connection = self._servers.connect(part.server, "ClientService", self._due_ms)
                call = connection.send("Multi", request, self._due_ms)
            except OSError as error:
                gone.add(part.server)
                self._regions.forget_server(part.server)
                self._cause = self._cause or error
            else:
                self._flying.append(Sent(part, connection, call))

    # ----------------------------------------------------------------------------- receiving

    def _receive_all(self) -> None:
        while self._flying:
            self._receive(self._flying[0])
            del self._flying[0]

    def _receive(self, sent: Sent) -> None:
        part, connection, call = sent
        try:
            response = connection.receive(call, PB.MultiResponse, self._due_ms)
        except RemoteError as error:
            if not (error.is_elsewhere or error.is_busy):
                error.table = part.regions[0].table
                raise
            self._note(error, part.regions)
        except OSError as error:
            self._lose(sent, error)
        else:
            self._take(part, response.regionActionResult, Cells(call.block))

    def _take(self, part: Shipment, results: Sequence[Any], cells: Cells) -> None:
        if len(results) != len(part.entries):
            raise MaybeApplied("answers are missing", asked=len(part.entries), got=len(results))
        for region, entry, result in zip(part.regions, part.entries, results, strict=True):
            done, failed = _read_entry(entry, result, cells)
            for position, error in failed.items():
                if not (error.is_elsewhere or error.is_busy):
                    error.table = self._items[position].table
                    raise error
                if done.pop(position, self) is not self:  # one of a row's two writes was done
                    self._is_touched = True
                self._note(error, [region])
            self._answers.update(done)

    def _note(self, error: RemoteError, regions: Iterable[Location]) -> None:
        """Note a failed item; look its region up again unless its server is only busy."""
        self._cause = error
        for region in dict.fromkeys(regions) if error.is_elsewhere else ():
            self._regions.forget(region)
            self._gone.add(region.table)

    def _lose(self, sent: Sent, error: OSError) -> None:
        """Note that no answer came: the items may have been done, or still may be."""
        self._regions.forget_server(sent.shipment.server)
        self._is_touched, self._cause = True, error
        is_once = any(item.is_once for entry in sent.shipment.entries for _, item in entry)
        if is_once or self._clock.monotonic_ms() >= self._due_ms:
            raise MaybeApplied(
                "no answer from the server", server=sent.shipment.server, cause=_cause(error)
            ) from error

    # ----------------------------------------------------------------------------- retrying

    def _prepare_again(self, waiting: Sequence[int]) -> None:
        """Refuse retries that would change the order, and errors that only a person can fix."""
        items = self._items
        undone = {(items[i].table, items[i].row): i for i in reversed(waiting) if items[i].is_once}
        for position in self._answers if undone else ():
            item = items[position]
            if item.is_once and position > undone.get((item.table, item.row), position):
                raise MaybeApplied("a row's checks were not done in their order", row=item.row)
        gone, self._gone = self._gone, set()
        for table in sorted(gone):
            self._regions.check_table(table, self._due_ms)


def _split_all(parts: Iterable[Shipment]) -> Iterator[Shipment]:
    """Yield the requests lazily, so that a server can begin before the next one is built."""
    for part in parts:
        yield from _split(part)


def _split(part: Shipment) -> list[Shipment]:
    """Divide much work for one server into parallel requests; a row stays in one."""
    work: dict[tuple[bytes, bytes], int] = {}  # of each row
    for entry in part.entries:
        for _, item in entry:
            work[item.table, item.row] = work.get((item.table, item.row), 0) + item.work
    total = sum(work.values())
    wanted = min(-(-total // WORK_A_REQUEST), MOST_REQUESTS)
    if wanted == 1:
        return [part]
    share = -(-total // wanted)
    pieces = [Shipment(part.server, [], []) for _ in range(wanted)]
    before = accumulate(work.values(), initial=0)
    piece_of = {row: done // share for row, done in zip(work, before, strict=False)}
    for region, entry in zip(part.regions, part.entries, strict=True):
        parts: dict[int, Entry] = {}
        for position, item in entry:
            parts.setdefault(piece_of[item.table, item.row], []).append((position, item))
        for number, some in parts.items():
            pieces[number].regions.append(region)
            pieces[number].entries.append(some)
    return [piece for piece in pieces if piece.entries]


def _make_request(part: Shipment) -> Any:
    request = PB.MultiRequest()
    for region, entry in zip(part.regions, part.entries, strict=True):
        message = request.regionAction.add()
        message.region.type, message.region.value = BY_NAME, region.name
        for index, (_, item) in enumerate(entry):
            item.fill(message, index)
    return request


def _read_entry(
    entry: Entry, result: Any, cells: Cells
) -> tuple[dict[int, Any], dict[int, RemoteError]]:
    """Return the answers to the items of an entry, and the errors, by position. A row with puts
    and deletes may have both, since one of its two writes may fail."""
    position, first = entry[0]
    if result.HasField("exception"):
        return {}, dict.fromkeys((each for each, _ in entry), _decode_error(result))
    if not first.is_apart:
        return _read_list(entry, result, cells)
    for answer in result.resultOrException:
        if answer.HasField("exception"):
            return {}, {position: _decode_error(answer)}
    return {position: first.read(result, cells)}, {}


def _read_list(
    entry: Entry, result: Any, cells: Cells
) -> tuple[dict[int, Any], dict[int, RemoteError]]:
    done: dict[int, Any] = {}
    failed: dict[int, RemoteError] = {}
    for answer in result.resultOrException:
        if answer.index >= len(entry):
            raise MaybeApplied("an answer is of no row", index=answer.index, asked=len(entry))
        position, item = entry[answer.index]
        if answer.HasField("exception"):
            failed[position] = _decode_error(answer)
        elif position not in done:
            done[position] = item.read(answer, cells)
    if len(done.keys() | failed.keys()) < len(entry):
        raise MaybeApplied("rows are missing from the answer", asked=len(entry))
    return done, failed


def _decode_error(answer: Any) -> RemoteError:
    return RemoteError(answer.exception.name, answer.exception.value)


def _cause(error: Exception | None) -> str:
    return first_line(error) or type(error).__name__
