"""Transactions in parts, which are too large for one row. One process begins it, any number write
parts of it, and one commits it. They share only the transaction's row key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Event, Thread

from txn.assertions import Assertion
from txn.client.engine import Engine
from txn.clock import measure_s
from txn.errors import AbortedError, InvalidRequestError, StoreError, raise_denial
from txn.events import Ended, name_outcome
from txn.model import Delete, Mutation, check_whole
from txn.protocol.children import begin_parent, decide_parent, write_child
from txn.protocol.context import Context
from txn.protocol.locks import Contention
from txn.protocol.recovery import (
    Resolver,
    finish_or_leave,
    make_corrupt_error,
    poison,
    release_children,
    roll_back,
    roll_forward,
)
from txn.protocol.row import MAX_CHILDREN, RowState, child_key, read_rows
from txn.protocol.statuses import Status
from txn.protocol.transaction import Transaction, load_transaction, write_heartbeats
from txn.repeating import repeat
from txn.request import Ack, Committed, Request, bind_request
from txn.text import reason_text
from txn.tracing import begin_traces, watch_batch


class PartsClient:
    """The steps of transactions in parts, through an engine with its own store.

    The lock TTL of the engine's policy is the transaction's; its owners send heartbeats with
    `sending_heartbeats`.
    wait_ms: how long a part may wait for locked keys; None: the policy's deadline. A waiting part
    holds locks and follows no order, so two may wait for each other.
    """

    def __init__(self, engine: Engine, wait_ms: int | None = None) -> None:
        self._engine = engine
        self._wait_ms = engine.context.policy.deadline_ms if wait_ms is None else wait_ms
        self._context = engine.context
        self._resolver = Resolver(self._context)
        self._contention = Contention(self._context, self._resolver.resolve)

    def begin(
        self, *, once: str | bytes | None = None, labels: Mapping[str, str] | None = None
    ) -> bytes:
        """Write the row of a transaction, and return its row key. Nothing is locked yet."""
        # What its parts will write is not known, as of a block.
        request = bind_request((), (), once, labels, answer=b"", may_be_empty=True)
        return begin_parent(self._context, request).row_key

    def write(
        self,
        transaction: bytes,
        task: int,
        number: int,
        mutations: Iterable[Mutation | Delete],
        assertions: Iterable[Assertion] = (),
    ) -> int:
        """Write part `number` (0-based) of a task; return the least commit timestamp that it
        allows. No two parts may have a key in common: the second one is refused.

        A task that runs again may write the same part again, with the same content. Raises
        InvalidRequestError, AssertionFailedError, or ConflictError if other transactions hold a key
        for too long or the transaction is over.
        """
        check_whole("task", task, 0)
        check_whole("number", number, 0)
        if max(task, number) >= MAX_CHILDREN:
            message = "too many parts"
            raise InvalidRequestError(message, task=task, number=number, limit=MAX_CHILDREN)
        request = bind_request(mutations, assertions)
        self._engine.check_request(request)
        part = child_key(transaction, task, number)
        due_ms = self._context.clock.monotonic_ms() + self._wait_ms
        return write_child(self._context, part, request, self._contention, due_ms)

    def commit(
        self, transaction: bytes, counts: Sequence[int], timestamp: int, ack: Ack = "complete"
    ) -> Committed:
        """Commit all parts. A transaction that is committed already is finished, and returned.

        counts: the number of parts of each task.
        timestamp: the greatest timestamp of the parts.
        ack: "decided" returns at the decision; the next client that meets a lock does the rest.
        Raises the errors of `Engine.commit`. Only with CommitOutcomeUnknown may it have been
        committed. An AbortedError leaves nothing behind.
        """
        if len(counts) > MAX_CHILDREN:
            raise InvalidRequestError("too many tasks", tasks=len(counts), limit=MAX_CHILDREN)
        for count in counts:
            check_whole("counts", count, 0)
            if count > MAX_CHILDREN:
                raise InvalidRequestError("too many parts", count=count, limit=MAX_CHILDREN)
        began_s = measure_s()
        is_remote = "remote_calls" in self._context.store.features
        (trace,) = begin_traces([Request(())], remote=is_remote)  # its keys are in its parts
        on_event = watch_batch({transaction: trace}, self._context.on_event)
        context = replace(self._context, on_event=on_event)

        def report(result: Committed | BaseException) -> None:
            elapsed_ms = (measure_s() - began_s) * 1000
            self._context.on_event(Ended(name_outcome(result), 1, elapsed_ms))
            if trace is not None:
                trace.end(result, transaction=transaction, tries=1)

        try:
            done = self._commit(context, transaction, counts, timestamp, ack)
        except BaseException as error:
            report(error)
            raise
        report(done)
        return done

    def _commit(
        self, context: Context, transaction: bytes, counts: Sequence[int], timestamp: int, ack: Ack
    ) -> Committed:
        try:
            t = decide_parent(context, transaction, counts, timestamp, self._contention)
        except StoreError as error:
            raise_denial(error)
        except AbortedError as error:
            once = self._abort(context, transaction, reason_text(error)).request.once
            if once is None or (first := self.find_committed(once)) is None:
                raise
            return first
        if ack == "complete":
            finish_or_leave(context, "roll forward", roll_forward, [t])
        return Committed(t.row_key, t.decided.timestamp, complete=t.is_finished)

    def abort(self, transaction: bytes, reason: str) -> bool:
        """Abort the transaction and its parts, unless decided; return whether it is aborted. One
        whose row was deleted never commits afterwards, but may have done so before."""
        status = self._abort(self._context, transaction, reason).status
        return status is None or not status.is_decided

    def find_committed(self, once: str | bytes) -> Committed | None:
        """Return the commit of a token, if there was one."""
        return self._engine.find_once(once)

    def _abort(self, context: Context, transaction: bytes, reason: str) -> Transaction:
        row = read_rows(context, [transaction])[transaction]
        if row.state is RowState.UNREADABLE:
            raise make_corrupt_error(row)
        t = load_transaction(context, row)
        # by a client that met one part, and has left the others; or now, as its row was deleted
        was_aborted = t.status is Status.ABORTED or (t.status is None and poison(context, t))
        roll_back(context, [t], lambda _: reason)
        if was_aborted:
            release_children(context, transaction, reason)
        return t

    @contextmanager
    def sending_heartbeats(self, transaction: bytes) -> Iterator[None]:
        """Send heartbeats for the transaction, three per lock TTL, until the block ends."""
        over, every_s = Event(), self._context.policy.lock_ttl_ms / 3_000
        send = partial(self.heartbeat, transaction)
        work = ("send heartbeat", send, over, every_s, self._context.on_event)
        heartbeats = Thread(target=repeat, args=work, name="txn-beat", daemon=True)
        heartbeats.start()
        try:
            yield
        finally:
            over.set()
            heartbeats.join()

    def heartbeat(self, transaction: bytes) -> None:
        """Send one heartbeat for the transaction."""
        # At the server's time, because the clock of one of several owners may be behind.
        write_heartbeats(self._context, {transaction: None})
