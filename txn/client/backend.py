"""The interface behind an engine: the protocol in this process, or a server that runs it.

An engine validates its arguments and binds keys to tables: a backend gets only valid requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

from txn.client.hot_keys import HotKeyTicket
from txn.errors import TxnError
from txn.model import Cell, Key, Row
from txn.policy import Pace
from txn.protocol.context import Context
from txn.reading.snapshot import Snapshot
from txn.request import Ack, Committed, Outcome, Request
from txn.spans import Span, Spans
from txn.stores.base import ColumnPage


class Backend(Protocol):
    """Commits and reads valid requests. Safe to share between threads.

    deadline_ms: how long a call may take, a commit until its decision; None: as long as the policy,
    or the connection to the server, allows. A read past its deadline raises DeadlineError.
    """

    @property
    def context(self) -> Context:
        """The store, transaction table, clock and policy, for recovery; may ask a server."""

    @property
    def pace(self) -> Pace:
        """How blocks wait before they run again. Sends no request."""

    def check_key(self, key: Key, deadline_ms: int | None = None) -> None:
        """Raise InvalidRequestError if the key's family is known to be unfit; see `deadline_ms`."""

    def check_request(self, request: Request, deadline_ms: int | None) -> None:
        """Raise InvalidRequestError if the request is known to be invalid; see `deadline_ms`."""

    def commit(
        self, request: Request, ack: Ack, spans: Spans, deadline_ms: int | None, known: Snapshot
    ) -> Committed:
        """Commit one request, if its spans have no keys but its own; raise its failure otherwise.

        known: the result of `read_for_block` for its keys.
        """

    def commit_many(
        self, requests: Sequence[Request], ack: Ack, deadlines_ms: Sequence[int | None]
    ) -> list[Committed | TxnError]:
        """Commit independent requests together; return the result of each."""

    def submit(self, request: Request, ack: Ack, deadline_ms: int | None) -> Future[Committed]:
        """Commit one request soon, together with others; the future gets the result of `commit`."""

    def read(self, keys: Sequence[Key], deadline_ms: int | None = None) -> Snapshot:
        """Return the keys' cells as of one instant."""

    def read_for_block(
        self, keys: Sequence[Key], ticket: HotKeyTicket, deadline_ms: int | None = None
    ) -> Snapshot:
        """Return the keys' cells, those of a row as of one instant. Other cells may be included,
        which save a block's commit from reading them again.

        ticket: the block's places in the queues of hot keys; the caller ends it with the block.
        """

    def scan(self, wanted: Span, deadline_ms: int | None = None) -> Iterator[Row]:
        """Yield the span's rows, each as of one instant. Rows without cells may be among them: they
        have no value, and show the progress of the scan."""

    def scan_columns(
        self, wanted: Span, columns: Sequence[tuple[bytes, bytes]]
    ) -> Iterator[ColumnPage]:
        """Yield the rows that have a value, each as of one instant, by the span's columns in this
        order."""

    def view(
        self, keys: Sequence[Key], spans: Spans, deadline_ms: int | None = None
    ) -> tuple[Snapshot, list[dict[Key, Cell]]]:
        """Return the cells of the keys, and those of each span, as of one instant."""

    def find_once(self, token: bytes, deadline_ms: int | None = None) -> Committed | None:
        """Return the durable commit of a token, or None."""

    def outcome(self, row_key: bytes) -> Outcome:
        """Return the outcome of a transaction."""

    def ensure_table(self, table: bytes, families: Collection[bytes]) -> None:
        """Create the table and those of its families that are missing."""

    def flush(self) -> None:
        """Wait until everything that was submitted or committed is complete, or left to others."""

    def close(self) -> None:
        """Flush, and release all resources."""
