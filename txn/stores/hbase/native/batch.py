"""Carry out items on the servers with their rows: one request each, repeated for moved rows.

Items that certainly had no effect, because a region moved or a server is busy, are retried until
the deadline. Items that may have taken effect are retried unless they must not be done twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import Any

from txn.clock import Clock
from txn.errors import MaybeApplied, NotApplied, StoreClosedError
from txn.policy import Backoff
from txn.stores.hbase.native.connection import RemoteError, RpcCall
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

Entry = tuple[Location, list[tuple[int, Item]]]
"""Items by position that share an entry of a request: all of one region, or one alone."""


class Shipment:
    """A request to one server: its entries and their work; once it is sent, its call."""

    __slots__ = ("call", "entries", "server", "work")

    call: RpcCall

    def __init__(self, server: Address) -> None:
        self.server = server
        self.entries: list[Entry] = []
        self.work = 0


class Batches:
    """Carries out items; safe for threads."""

    def __init__(self, servers: Servers, regions: Regions, clock: Clock) -> None:
        self.servers = servers
        self.regions = regions
        self.clock = clock
        self.rng = Random()

    def run(self, items: Sequence[Item], due_ms: int) -> list[Any]:
        """Return the answer to each item. A server does the checks of a row in order. What shares a
        list of its region, a read too, may come before checks that precede it.

        Raises RemoteError if a server refuses an item, TableUnavailable, NotApplied if nothing was
        done, and MaybeApplied.
        """
        return _Run(self, items, due_ms).run()

    def run_in_turn(self, groups: Sequence[Sequence[Item]], due_ms: int) -> list[Any]:
        """Return the answers to all reads of groups. No group is read before all earlier ones. If
        one server has all items, one request carries them, and the server keeps their order."""
        items = [item for group in groups for item in group]
        answers = None
        if len(items) <= ITEMS_A_REQUEST:
            answers = _Run(self, items, due_ms).try_in_one_request(groups)
        if answers is None:
            return [answer for group in groups for answer in self.run(group, due_ms)]
        return answers

    def try_once(self, items: Sequence[Item], due_ms: int) -> list[Any]:
        """Return the answers to reads that succeed at the first try, and None for the others."""
        return _Run(self, items, due_ms).try_once()


class _Run:
    def __init__(self, batches: Batches, items: Sequence[Item], due_ms: int) -> None:
        self._servers, self._regions = batches.servers, batches.regions
        self._clock, self._rng = batches.clock, batches.rng
        self._items = items
        self._due_ms = due_ms
        self._flying: list[Shipment] = []
        count = len(items)
        self._all = range(count)
        self._answers: list[Any] = [None] * count  # None: there is none yet
        self._gone: set[bytes] = set()  # tables with a region that has moved
        self._is_touched = False  # a request was lost that may have been carried out
        self._cause: Exception | None = None

    def run(self) -> list[Any]:
        """Return the answers. NotApplied means that nothing was done, or will be."""
        answers = self._answers
        try:
            size_of = [item.size for item in self._items].__getitem__
            waiting: Sequence[int] = self._all
            for _ in PAUSES.tries(self._clock, self._rng, due_ms=self._due_ms):
                for some in cut(waiting, size_of, BYTES_A_REQUEST, ITEMS_A_REQUEST):
                    self._try(self._divide(some))
                if None not in answers:
                    return answers
                waiting = [position for position in waiting if answers[position] is None]
                self._prepare_again(waiting)
            raise NotApplied("the servers could not do it in time", cause=_cause(self._cause))
        except (NotApplied, StoreClosedError) as error:
            if self._is_touched or self._flying or answers.count(None) < len(answers):
                raise MaybeApplied(str(error)) from error
            raise

    def try_once(self) -> list[Any]:
        """Return the answers to the first try of all items, None for those that failed."""
        self._try(self._divide(self._all))
        return self._answers

    def try_in_one_request(self, groups: Sequence[Sequence[Item]]) -> list[Any] | None:
        """Return the answers if one request to one server covers all groups, else None."""
        whole: Shipment | None = None
        begin = 0
        for group in groups:
            for part in self._divide(range(begin, begin + len(group))):
                whole = whole or Shipment(part.server)
                if part.server != whole.server:
                    return None
                whole.entries += part.entries
            begin += len(group)
        self._try([] if whole is None else [whole])
        return None if None in self._answers else self._answers

    # ------------------------------------------------------------------- sending and receiving

    def _divide(self, positions: Iterable[int]) -> list[Shipment]:
        """Group items by server and region; items with entries of their own keep their order."""
        parts: dict[Address, Shipment] = {}
        lists: dict[Location, list[tuple[int, Item]]] = {}
        region = None
        for position in positions:
            item = self._items[position]
            if region is None or region.table != item.table or not region.has(item.row):
                region = self._regions.find(item.table, item.row, self._due_ms)
                if region.server not in parts:
                    parts[region.server] = Shipment(region.server)
                part, shared = parts[region.server], lists.get(region)
            part.work += item.work
            if item.is_apart:
                part.entries.append((region, [(position, item)]))
            elif shared is not None:
                shared.append((position, item))
            else:
                shared = lists[region] = [(position, item)]
                part.entries.append((region, shared))
        return list(parts.values())

    def _try(self, parts: Iterable[Shipment]) -> None:
        """Send all possible requests; a server can begin before the next one is built. If a server
        cannot be reached, forget its regions and skip its other requests, because each try may take
        long. Then receive the answers."""
        flying = self._flying
        try:
            for part in parts:
                try:
                    for piece in [part] if part.work <= WORK_A_REQUEST else _split(part):
                        request = _make_request(piece)
                        piece.call = self._servers.send(
                            part.server, "ClientService", "Multi", request, self._due_ms
                        )
                        flying.append(piece)
                except OSError as error:
                    self._regions.forget_server(part.server)
                    self._cause = self._cause or error
            refusal: RemoteError | None = None
            while flying:
                try:
                    self._receive(flying[0])
                except RemoteError as error:
                    if not any(item.is_once for item in self._items):
                        raise
                    refusal = refusal or error  # told when no check is in flight any more
                del flying[0]
            if refusal is not None:
                raise refusal
        finally:
            for part in flying:
                part.call.connection.drop(part.call)

    def _receive(self, part: Shipment) -> None:
        try:
            response = part.call.receive(PB.MultiResponse, self._due_ms)
        except RemoteError as error:
            if not (error.is_elsewhere or error.is_busy):
                error.table = part.entries[0][0].table
                raise
            for region in dict.fromkeys(region for region, _ in part.entries):
                self._note(error, region)
        except OSError as error:
            self._lose(part, error)
        else:
            results, asked = response.regionActionResult, len(part.entries)
            if len(results) != asked:
                raise MaybeApplied("answers are missing", asked=asked, got=len(results))
            self._take(part, results)

    def _take(self, part: Shipment, results: Sequence[Any]) -> None:
        """Keep the answers to a request, and note its errors."""
        cells = part.call.cells
        for (region, items), result in zip(part.entries, results, strict=True):
            failed: dict[int, RemoteError] = {}
            position, item = items[0]
            if result.HasField("exception"):
                failed = dict.fromkeys((each for each, _ in items), _decode_error(result))
            elif not item.is_apart:
                failed = self._read_list(items, result, cells)
            else:
                for answer in result.resultOrException:
                    if answer.HasField("exception"):
                        failed[position] = _decode_error(answer)
                if not failed:
                    self._answers[position] = item.read(result, cells)
            for at, error in failed.items():
                if not (error.is_elsewhere or error.is_busy):
                    error.table = region.table
                    raise error
                if self._answers[at] is not None:  # one of a row's two writes was done
                    self._answers[at], self._is_touched = None, True
                self._note(error, region)

    def _read_list(
        self, items: list[tuple[int, Item]], result: Any, cells: Cells
    ) -> dict[int, RemoteError]:
        """Keep the answers of a list, and return its errors by position. A row with puts and
        deletes may have both, since one of its two writes may fail."""
        answers, failed = self._answers, {}
        asked = len(items)
        for answer in result.resultOrException:
            if answer.index >= asked:
                raise MaybeApplied("an answer is of no row", index=answer.index, asked=asked)
            position, item = items[answer.index]
            if answer.HasField("exception"):
                failed[position] = _decode_error(answer)
            elif answers[position] is None:
                answers[position] = item.read(answer, cells)
        for position, _ in items:
            if answers[position] is None and position not in failed:
                raise MaybeApplied("rows are missing from the answer", asked=asked)
        return failed

    def _note(self, error: RemoteError, region: Location) -> None:
        """Note a failed item; look its region up again unless its server is only busy."""
        self._cause = error
        if error.is_elsewhere:
            self._regions.forget(region)
            self._gone.add(region.table)

    def _lose(self, part: Shipment, error: OSError) -> None:
        """Note that no answer came: the items may have been done, or still may be."""
        self._regions.forget_server(part.server)
        self._is_touched, self._cause = True, error
        is_once = any(item.is_once for _, items in part.entries for _, item in items)
        if is_once or self._clock.monotonic_ms() >= self._due_ms:
            raise MaybeApplied(
                "no answer from the server", server=part.server, cause=_cause(error)
            ) from error

    # ----------------------------------------------------------------------------- retrying

    def _prepare_again(self, waiting: Sequence[int]) -> None:
        """Refuse retries that would change the order, and errors that only a person can fix."""
        items = self._items
        undone = {(items[i].table, items[i].row): i for i in reversed(waiting) if items[i].is_once}
        for position, item in enumerate(items) if undone else ():
            is_done = item.is_once and self._answers[position] is not None
            if is_done and position > undone.get((item.table, item.row), position):
                raise MaybeApplied("a row's checks were not done in their order", row=item.row)
        gone, self._gone = self._gone, set()
        for table in sorted(gone):
            self._regions.check_table(table, self._due_ms)


def _split(part: Shipment) -> list[Shipment]:
    """Divide much work for one server into parallel requests; a row stays in one."""
    work: dict[tuple[bytes, bytes], int] = {}  # of each row
    for _, items in part.entries:
        for _, item in items:
            work[item.table, item.row] = work.get((item.table, item.row), 0) + item.work
    wanted = min(-(-part.work // WORK_A_REQUEST), MOST_REQUESTS)
    share = -(-part.work // wanted)
    before = accumulate(work.values(), initial=0)
    piece_of = {row: done // share for row, done in zip(work, before, strict=False)}
    pieces = [Shipment(part.server) for _ in range(wanted)]
    for region, items in part.entries:
        first = items[0][1]
        if first.is_apart:
            pieces[piece_of[first.table, first.row]].entries.append((region, items))
            continue
        shares: dict[int, list[tuple[int, Item]]] = {}
        for position, item in items:
            shares.setdefault(piece_of[item.table, item.row], []).append((position, item))
        for number, some in shares.items():
            pieces[number].entries.append((region, some))
    return [piece for piece in pieces if piece.entries]


def _make_request(part: Shipment) -> Any:
    entries = [
        {
            "region": {"type": BY_NAME, "value": region.name},
            "atomic": items[0][1].is_apart or None,
            "condition": items[0][1].make_condition(),
            "action": [
                {"index": index, item.field: message}
                for index, (_, item) in enumerate(items)
                for message in item.list_messages()
            ],
        }
        for region, items in part.entries
    ]
    return PB.MultiRequest(regionAction=entries)


def _decode_error(answer: Any) -> RemoteError:
    return RemoteError(answer.exception.name, answer.exception.value)


def _cause(error: Exception | None) -> str:
    return first_line(error) or type(error).__name__
