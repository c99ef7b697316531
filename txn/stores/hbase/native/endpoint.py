"""Change many rows of a region in one request, with HBase's MultiRowMutationEndpoint.

The region applies such a request whole, if the conditions of all its items hold, or not at all, and
waits for its log once. A table has the endpoint if its descriptor names the class. Without it, or
without permission to use it, items are carried out in the ordinary way. An old server ignores the
conditions and applies the changes, so each connection first proves that its server honours them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import urandom
from typing import Any

from google.protobuf.message import DecodeError

from txn.clock import Clock
from txn.errors import MaybeApplied, NotApplied, StoreClosedError
from txn.stores.hbase.native.batch import BYTES_A_REQUEST, Batches
from txn.stores.hbase.native.connection import RemoteError, RpcCall, RpcConnection
from txn.stores.hbase.native.items import WriteRow, make_probe
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.regions import BY_NAME, Location
from txn.stores.hbase.native.target import Address
from txn.stores.hbase.places import first_line

FEWEST_ROWS = 3
"""So many checks of a region share a request; fewer are cheaper one by one."""
MOST_ROWS = 64
"""A request of several groups has at most so many rows."""
MOST_GROUP_ROWS = 500
"""A larger group is not carried out together: its rows would be locked for long."""
REST_MS = 100
"""So long after a refusal nothing shares a request in a region: the next refusal is likely."""
ABSENT_MS = 60_000
"""So long a table without the endpoint is not asked again."""
UNFIT = {"UnknownProtocolException", "AccessDeniedException"}
OUTSIDE = "org.apache.hadoop.hbase.DoNotRetryIOException: Requested row out of range"
"""How an error begins if a region was split: another row of the request is in it."""

Group = Sequence[WriteRow]
"""Items to be carried out at one instant."""


class Part:
    """A request to a region, with whole groups, by number.

    rows: those of its items. changed: those that it changes. answer: True: all of it took effect;
    False: nothing did, since a condition did not hold; None: the region cannot do it, and did
    nothing.
    """

    __slots__ = ("answer", "call", "changed", "items", "numbers", "region", "rows", "size")

    def __init__(self, region: Location) -> None:
        self.region = region
        self.numbers: list[int] = []
        self.items: list[WriteRow] = []
        self.rows: set[bytes] = set()
        self.changed: set[bytes] = set()
        self.size = 0
        self.call: RpcCall | None = None
        self.answer: bool | None = None

    def add(self, number: int, group: Group) -> None:
        self.numbers.append(number)
        for item in group:
            self.items.append(item)
            self.rows.add(item.row)
            self.size += item.size
            if item.is_change:
                self.changed.add(item.row)

    def has_room(self, group: Group, size: int) -> bool:
        """Whether a group of this size fits in, and shares no row with another that either of them
        changes."""
        if len(self.rows) + len(group) > MOST_ROWS or self.size + size > BYTES_A_REQUEST:
            return False
        for item in group:
            if item.row in (self.rows if item.is_change else self.changed):
                return False
        return True


class Endpoint:
    """Carries out items of a region together; safe for threads."""

    def __init__(self, batches: Batches, clock: Clock) -> None:
        self._batches = batches
        self._servers, self._regions = batches.servers, batches.regions
        self._clock = clock
        self._absent_ms: dict[bytes, int] = {}  # when tables showed no endpoint
        self._refused_ms: dict[bytes, int] = {}  # when regions refused, by name

    def check(self, items: Sequence[WriteRow], due_ms: int) -> list[Any]:
        """Return the answer to each check. Many of a region are carried out together, or one by one
        if a condition does not hold."""
        parts = self._join(items, due_ms)
        if not parts:
            return self._batches.run(items, due_ms)
        answers: list[Any] = [None] * len(items)
        with _following(answers) as calls:
            self._send(parts, calls, due_ms)
            joined = {number for part in parts for number in part.numbers}
            others = {n: item for n, item in enumerate(items) if n not in joined}
            self._run_singly(others, answers, due_ms)
            self._receive(parts, due_ms)
            for part in parts:
                for number in part.numbers if part.answer else ():
                    answers[number] = True
            left = {n: items[n] for n, answer in enumerate(answers) if answer is None}
            self._run_singly(left, answers, due_ms)
        return answers

    def _join(self, items: Sequence[WriteRow], due_ms: int) -> list[Part]:
        """Return the requests for checks that pay together; no row has another check."""
        if len(items) < FEWEST_ROWS:
            return []
        tables = Counter([item.table for item in items if item.may_join])
        if max(tables.values(), default=0) < FEWEST_ROWS:
            return []
        rows = Counter([(item.table, item.row) for item in items])
        groups = [[i] if i.may_join and rows[i.table, i.row] == 1 else [] for i in items]
        parts = self._divide(groups, due_ms)
        return [part for part in parts if len(part.numbers) >= FEWEST_ROWS]

    def _run_singly(self, items: Mapping[int, WriteRow], answers: list[Any], due_ms: int) -> None:
        """Carry out items one by one, and put their answers at their numbers."""
        if items:
            found = self._batches.run([*items.values()], due_ms)
            for number, answer in zip(items, found, strict=True):
                answers[number] = answer

    def put_if_all(self, groups: Sequence[Group], due_ms: int) -> list[bool | None]:
        """See `Store.put_if_all`. Groups of a region share a request, and are sent alone if it is
        refused."""
        answers: list[bool | None] = [None] * len(groups)
        parts = self._divide(groups, due_ms)
        with _following(answers) as calls:
            while parts:
                self._send(parts, calls, due_ms)
                self._receive(parts, due_ms)
                refused = [part for part in parts if part.answer is False and part.numbers[1:]]
                for part in parts:
                    for number in part.numbers:
                        answers[number] = part.answer
                parts = []
                for part in refused:
                    for number in part.numbers:
                        parts.append(Part(part.region))
                        parts[-1].add(number, groups[number])
            unanswered = [n for n, answer in enumerate(answers) if answer is None]
            single = {n: groups[n][0] for n in unanswered if len(groups[n]) == 1}
            self._run_singly(single, answers, due_ms)
        return answers

    def _divide(self, groups: Sequence[Group], due_ms: int) -> list[Part]:
        """Return the requests for groups that each lie in one region that may have the endpoint."""
        now_ms = self._clock.monotonic_ms()
        parts: list[Part] = []
        last: dict[Location, Part] = {}
        region = None
        for number, group in enumerate(groups):
            size = sum([item.size for item in group])
            if not group or len(group) > MOST_GROUP_ROWS or size > BYTES_A_REQUEST:
                continue
            table, row = group[0].table, group[0].row
            if self._is_absent(table, now_ms):
                continue
            if region is None or region.table != table or not region.has(row):
                region = self._regions.find(table, row, due_ms)
            if group[1:] and not all([i.table == table and region.has(i.row) for i in group]):
                continue
            part = last.get(region)
            rests = now_ms - self._refused_ms.get(region.name, -REST_MS) < REST_MS
            if part is None or rests or not part.has_room(group, size):
                part = last[region] = Part(region)
                parts.append(part)
            part.add(number, group)
        return parts

    def _is_absent(self, table: bytes, now_ms: int) -> bool:
        return now_ms - self._absent_ms.get(table, -ABSENT_MS) < ABSENT_MS

    # ------------------------------------------------------------------- sending and receiving

    def _send(self, parts: Sequence[Part], calls: list[RpcCall], due_ms: int) -> None:
        """Send requests; one that certainly was not sent keeps its answer None. A server that
        cannot be reached is tried once, because each try may take long."""
        gone: set[Address] = set()
        for part in parts:
            server = part.region.server
            if server in gone or self._is_absent(part.region.table, self._clock.monotonic_ms()):
                continue
            try:
                connection = self._servers.find_connection(server, "ClientService", due_ms)
                if self._is_proven(connection, part, due_ms):
                    part.call = self._start(connection, part.region, _make_request(part), due_ms)
                    calls.append(part.call)
            except OSError:
                gone.add(server)
                self._regions.forget_server(server)

    def _start(
        self, connection: RpcConnection, region: Location, request: Any, due_ms: int
    ) -> RpcCall:
        call = {
            "row": region.start,
            "service_name": "MultiRowMutationService",
            "method_name": "MutateRows",
            "request": request.SerializeToString(),
        }
        wanted = PB.CoprocessorServiceRequest(
            region={"type": BY_NAME, "value": region.name}, call=call
        )
        now_ms = self._clock.monotonic_ms()
        return connection.send("ExecService", wanted, now_ms, due_ms)

    def _is_proven(self, connection: RpcConnection, part: Part, due_ms: int) -> bool:
        """Whether the server at the other end honours conditions. If that is unknown, send it one
        that cannot hold, before a change that harms nobody. An error is as good as no endpoint."""
        if connection.honours_conditions is None:
            request = make_probe(part.items[0], urandom(16))
            call = self._start(connection, part.region, request, due_ms)
            try:
                answer = self._read_answer(call, part.region, due_ms)
            except RemoteError:
                self._absent_ms[part.region.table] = self._clock.monotonic_ms()
                return False
            if answer is not None:
                connection.honours_conditions = (
                    answer.HasField("processed") and not answer.processed
                )
        return connection.honours_conditions is True

    def _receive(self, parts: Sequence[Part], due_ms: int) -> None:
        refusal: RemoteError | None = None
        for part in parts:
            if part.call is None:
                continue
            try:
                answer = self._read_answer(part.call, part.region, due_ms)
                if answer is not None and not answer.HasField("processed"):
                    raise ConnectionError("an answer does not say whether conditions held")
            except RemoteError as error:  # told when nothing is in flight any more
                refusal = refusal or error
                continue
            except OSError as error:
                server = part.region.server
                self._regions.forget_server(server)
                cause = first_line(error) or type(error).__name__
                raise MaybeApplied(
                    "no answer from the server", server=server, cause=cause
                ) from error
            if answer is not None:
                part.answer = answer.processed
                if not answer.processed:
                    if len(self._refused_ms) > 1_000:
                        self._refused_ms = {}
                    self._refused_ms[part.region.name] = self._clock.monotonic_ms()
        if refusal is not None:
            raise refusal

    def _read_answer(self, call: RpcCall, region: Location, due_ms: int) -> Any:
        """Return the answer; None if the region certainly did nothing."""
        try:
            answer = call.receive(PB.CoprocessorServiceResponse, due_ms)
            return PB.MutateRowsResponse.FromString(answer.value.value)
        except DecodeError as error:
            raise ConnectionError(f"not an answer of HBase's: {error}") from error
        except RemoteError as error:
            if error.name in UNFIT:
                self._absent_ms[region.table] = self._clock.monotonic_ms()
            elif error.is_elsewhere or str(error).startswith(OUTSIDE):
                self._regions.forget(region)
            elif not error.is_busy:
                error.table = region.table
                raise
            return None


def _make_request(part: Part) -> Any:
    """Return the request with a condition for each item. It need not wait for the log if none of
    its items needs that."""
    changing = [item for item in part.items if item.is_change]
    changes = [message for item in changing for message in item.list_messages()]
    if not all([item.is_deferred for item in changing]):
        for message in changes:
            message["durability"] = None
    conditions = {item.condition: item for item in part.items}  # some may be the same
    return PB.MutateRowsRequest(
        mutation_request=changes, condition=[item.make_condition() for item in conditions.values()]
    )


@contextmanager
def _following(answers: Sequence[Any]) -> Iterator[list[RpcCall]]:
    """Collect the calls that are sent. Once there are any, or an answer, nothing that fails is
    NotApplied."""
    calls: list[RpcCall] = []
    try:
        yield calls
    except (NotApplied, StoreClosedError) as error:
        if calls or answers.count(None) < len(answers):
            raise MaybeApplied(str(error)) from error
        raise
    finally:
        for call in calls:
            if not call.is_done:
                call.connection.drop(call)
