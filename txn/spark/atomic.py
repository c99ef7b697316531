"""`df.write.format("txn").option("atomic", "true")`: a data frame that appears all at once.

Planning the job writes the parent record of one transaction. Tasks write child records, which lock
the keys that they change. The final commit decides for all by one compare-and-set. A failed job is
aborted. `fsck` ends a dead job like any other transaction, decided or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txn.client.parts import PartsClient
from txn.errors import AbortedError, InvalidRequestError
from txn.model import Delete, Mutation
from txn.policy import Policy
from txn.request import Ack, Request
from txn.spark.definitions import MAPPING
from txn.spark.options import SourceOptions
from txn.spark.partitions import LOG, Access, find_partition, open_worker
from txn.spark.requests import CONDITIONS, RequestBuilder, parse_requests
from txn.spark.tokens import make_token
from txn.spark.writer import NEW_TABLE, WRITING, NewTables
from txn.stores.options import hide_login

ATOMIC = (
    *(*MAPPING, *CONDITIONS, *NEW_TABLE),
    *("nulls", "empty", "atomic", "jobId", "ack", "partKeys", "waitMs"),
)

LEASE_MS = 60_000
"""The lock TTL of a job: how long it may be silent between two tasks before others may abort it."""
WAIT_MS = 30_000
"""How long a part waits beyond the lock TTL, so that a job outwaits a dead run of itself."""
PART_KEYS = 1_000
PART_BYTES = 1_000_000


@dataclass(frozen=True)
class PartsReport(WriterCommitMessage):
    """The number of parts that a task has written, and the least commit timestamp they allow."""

    partition: int
    parts: int
    timestamp: int


@dataclass
class AtomicWriter(DataSourceArrowWriter):
    """The writer of one job, which is one transaction.

    part_keys: the number of keys per part, if its rows allow. wait_ms: how long each part may wait
    for locks. ack: whether the job ends when all values are in place, or once it is decided.
    transaction: its row key; None: a job of this name wrote the table before, and nothing is done.
    """

    access: Access
    builder: RequestBuilder
    part_keys: int
    wait_ms: int
    ack: Ack
    transaction: bytes | None = None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task as parts in row-key order: the same ones if it runs again."""
        partition = find_partition()
        if self.transaction is None:
            return PartsReport(partition, 0, 0)
        client = self._open_client()
        newest = number = 0
        with client.sending_heartbeats(self.transaction):
            built = self.builder.build_requests(iterator, b"")
            table = self.builder.mapping.table
            requests = chain.from_iterable(
                split_rows(rows[0].row, table, request) for rows, request in built
            )
            for number, part in enumerate(split_parts(requests, self.part_keys), 1):
                written = client.write(
                    self.transaction, partition, number - 1, part.mutations, part.assertions
                )
                newest = max(newest, written)
        return PartsReport(partition, number, newest)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.transaction is None:
            return
        reports = [message for message in messages if isinstance(message, PartsReport)]
        if len(reports) < len(messages):  # its parts would not be counted, and so not committed
            self.abort(messages)
            facts = {"tasks": len(messages), "reports": len(reports)}
            raise AbortedError("a task has no report", transaction=self.transaction, **facts)
        parts = {report.partition: report.parts for report in reports}
        counts = [parts.get(partition, 0) for partition in range(max(parts, default=-1) + 1)]
        newest = max((report.timestamp for report in reports), default=0)
        self._open_client().commit(self.transaction, counts, newest, ack=self.ack)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transaction, unless it was decided and only the reply was lost."""
        if self.transaction is not None:
            self._open_client().abort(self.transaction, "its Spark job failed")

    def _open_client(self) -> PartsClient:
        return PartsClient(open_worker(self.access).engine, self.wait_ms)


def make_atomic_writer(options: SourceOptions, schema: StructType) -> AtomicWriter:
    """Return the writer of a job and begin its transaction, or raise InvalidRequestError."""
    if others := [name for name in WRITING if name not in ATOMIC and options.text(name)]:
        raise InvalidRequestError(
            "an atomic data frame is one transaction, and has no options of its rows: leave them "
            "out",
            options=others,
        )
    options.check(ATOMIC)
    access = options.access()
    policy = access.policy or Policy()
    if options.text("lock_ttl_ms") is None:
        policy = replace(policy, lock_ttl_ms=LEASE_MS)
    access = replace(access, policy=policy)
    if access.uri.startswith("txn:"):
        uri = hide_login(access.uri)
        raise InvalidRequestError("a server commits no parts: name its store", uri=uri)
    writer = AtomicWriter(
        access,
        parse_requests(options, schema)._replace(is_once=False),
        options.whole("partKeys", PART_KEYS),
        options.whole("waitMs", policy.lock_ttl_ms + WAIT_MS),
        options.ack("complete"),
    )
    token = make_token(writer.builder.prefix) if options.text("jobId") else None
    new_tables = NewTables.parse(options)
    with access.open_engine() as engine:
        if new_tables is not None:
            new_tables.create(engine, writer.builder.mapping)
        engine.check_request(writer.builder.sample_request())
        client = PartsClient(engine)
        if token is None or client.find_committed(token) is None:
            writer.transaction = client.begin(once=token)
        else:
            LOG.warning("nothing is written: a job of this name wrote the table before")
    return writer


def split_rows(row: bytes, table: bytes, request: Request) -> Iterable[Request]:
    """Return a request for each row that a request writes, because parts have whole rows. The
    assertions stay with this one, the row of the mapping."""
    found: dict[tuple[bytes | None, bytes], list[Mutation | Delete]] = {}
    for mutation in request.mutations:
        found.setdefault((mutation.key.table, mutation.key.row), []).append(mutation)
    if found.keys() <= {(table, row)}:
        return [request]
    main = Request(tuple(found.pop((table, row), ())), request.assertions)
    others = [Request(tuple(mutations)) for mutations in found.values()]
    return [main, *others] if main.keys else others


def split_parts(requests: Iterable[Request], most_keys: int) -> Iterator[Request]:
    """Yield the parts of a task's requests in row-key order; no row is split across parts."""
    part: list[Request] = []
    keys = size = 0
    for _, alike in groupby(sorted(requests, key=_row_of), key=_row_of):
        some = list(alike)
        count = sum(len(request.keys) for request in some)
        changes = [mutation for request in some for mutation in request.mutations]
        length = sum(sum(map(len, m.key[:3])) + len(m.value or b"") for m in changes)
        if part and (keys + count > most_keys or size + length > PART_BYTES):
            yield _join(part)
            part, keys, size = [], 0, 0
        part += some
        keys, size = keys + count, size + length
    if part:
        yield _join(part)


def _row_of(request: Request) -> tuple[bytes, bytes]:
    key = request.keys[0]
    return key.table or b"", key.row


def _join(requests: list[Request]) -> Request:
    return Request(
        tuple(mutation for request in requests for mutation in request.mutations),
        tuple(assertion for request in requests for assertion in request.assertions),
    )
