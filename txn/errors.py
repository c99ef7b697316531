"""Every error of the library, arranged by what its receiver should do next.

An expected "no", such as a checked put that finds another value, is never an exception. Messages
are lower case with the facts last, as `name=value`.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

Written = Literal["yes", "no", "unknown"]


def annotate(message: str, **facts: object) -> str:
    """Join a message and its facts in the format of all errors of this library."""
    known = [f"{name}={_show(value)}" for name, value in facts.items() if value is not None]
    return " ".join([message, *known])


def _show(value: object) -> str:
    try:
        return repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"


class TxnError(Exception):
    """The root of all errors that this library raises on purpose.

    retryable: the same call may succeed later, and to repeat it is safe even without a token.
    written: whether the call changed anything, or may still do so.
    """

    retryable: bool = False
    written: Written = "no"

    def __init__(self, message: str = "", **facts: object) -> None:
        super().__init__(annotate(message, **facts))

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle assumes that a subclass's arguments are those of its message, which is wrong here.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InvalidRequestError(TxnError, ValueError):
    """The request can never succeed as it is: change it. Nothing was written."""


class ReadOnlyError(InvalidRequestError):
    """The store is read-only here: open it where writing is allowed. Nothing was written."""


class TokenReusedError(InvalidRequestError):
    """Nothing was written: `transaction` committed another content with the `once` token."""

    def __init__(self, message: str, token: bytes, transaction: bytes) -> None:
        super().__init__(message)
        self.token, self.transaction = token, transaction


class Repeated(TxnError):
    """Nothing was written: the `once` token had been committed, as `committed` says, and keeps no
    answer."""

    def __init__(self, committed: Any) -> None:
        super().__init__("committed before, without an answer", transaction=committed.transaction)
        self.committed = committed


class AbortedError(TxnError):
    """The transaction wrote nothing and never will. The subclass says whether to run it again.

    words: the cause.
    facts: the details, by name.
    reason: both, as in the message.
    """

    def __init__(self, words: str, *, transaction: bytes | None = None, **facts: object) -> None:
        self.reason = annotate(words, **facts)
        super().__init__(annotate(self.reason, transaction=transaction))
        self.words = words
        self.facts = {name: fact for name, fact in facts.items() if fact is not None}
        self.transaction = transaction

    def add_cause(self, cause: TxnError) -> None:
        """Add to the facts why the obstacle remains."""
        self.facts["cause"] = str(cause)
        self.reason = annotate(self.words, **self.facts)
        self.args = (annotate(self.reason, transaction=self.transaction),)
        self.__cause__ = cause


class ConflictError(AbortedError):
    """Another transaction was in the way: run it again. Names the key and its holder."""

    retryable = True

    def __init__(
        self,
        words: str,
        *,
        key: object = None,
        holder: bytes | None = None,
        transaction: bytes | None = None,
    ) -> None:
        super().__init__(words, transaction=transaction, key=key, holder=holder)
        self.key = key
        self.holder = holder


class AssertionFailedError(AbortedError):
    """An assertion was false under the locks: read again and decide. Has it and its cells; those
    that only versions were asserted of are stamps, because their values were not read."""

    def __init__(
        self, assertion: object, seen: Mapping[Any, Any], *, transaction: bytes | None = None
    ) -> None:
        super().__init__(
            "assertion failed", transaction=transaction, assertion=assertion, seen=seen
        )
        self.assertion = assertion
        self.seen = seen


class DeadlineError(AbortedError):
    """The deadline passed before the decision: run it again with more time or less load."""

    retryable = True


class CommitOutcomeUnknown(TxnError):
    """The decision was sent and its result is unknown: call `engine.outcome(error.transaction)`."""

    written = "unknown"

    def __init__(self, transaction: bytes, cause: BaseException | None = None) -> None:
        why = None if cause is None else str(cause) or type(cause).__name__
        super().__init__(annotate("commit outcome unknown", transaction=transaction, cause=why))
        self.transaction = transaction
        self.__cause__ = cause


class CorruptRowError(TxnError):
    """Stored bytes do not decode: keep the row and inspect it. It is never deleted or guessed.

    place: the row key of the transaction, or the key of the cell, if known. The message may contain
    the bytes, so do not log it.
    """

    def __init__(self, message: str = "", **facts: object) -> None:
        super().__init__(message, **facts)
        self.place = facts.get("row") or facts.get("transaction") or facts.get("key")


class StoreError(TxnError):
    """The store could not do what it was asked: repair the store or the connection.

    call: the name of the store's call, if calls are measured.
    """

    written: Written = "unknown"
    call: str | None = None


class StoreClosedError(StoreError):
    """The store cannot be used any more: this program closed it, it was busy during a fork, or its
    files were replaced. The call had no effect."""

    written = "no"


class NotApplied(StoreError):
    """The call certainly had no effect: it is safe to repeat it."""

    retryable = True
    written = "no"


def deny(error: TxnError, words: str = "nothing was committed") -> TxnError:
    """Return the error for a request that has had no effect and never will, even if the store's
    error is less definite. words: precede its message."""
    if isinstance(error, NotApplied | StoreClosedError) or not isinstance(error, StoreError):
        return error
    denied = NotApplied(f"{words}: {error}" if words else str(error))
    denied.__cause__ = error
    return denied


def raise_denial(error: TxnError, words: str = "nothing was committed") -> NoReturn:
    denied = deny(error, words)
    raise denied from denied.__cause__


class MaybeApplied(StoreError):
    """The call may have taken effect, now or later: read before doing anything else."""


class TableUnavailable(MaybeApplied):
    """A table or family that the call needs is missing or disabled, or refuses the call, for
    example because it is read-only. The call is not repeated, because an operator must change that.
    It may have taken effect in other tables."""

    def __init__(self, message: str, table: bytes) -> None:
        super().__init__(message)
        self.table = table
