"""Every error of the library, arranged by what its receiver should do next.

An expected "no" (a checked put that finds another value) is never an exception; these are for calls
that could not do what they were asked. Messages are lower case with the facts last, `name=value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


def annotate(message: str, **facts: object) -> str:
    """Join a message and its facts the way every error of this library prints them."""
    known = [f"{name}={value!r}" for name, value in facts.items() if value is not None]
    return " ".join([message, *known])


class TxnError(Exception):
    """The root: catch it to catch everything that this library raises on purpose."""

    def __init__(self, message: str = "", **facts: object) -> None:
        super().__init__(annotate(message, **facts))

    def __reduce__(self) -> tuple[Any, ...]:
        # The arguments of a subclass are not those of its message, which is what pickle assumes.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[TxnError], args: tuple[Any, ...], facts: dict[str, Any]) -> TxnError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class InvalidRequestError(TxnError, ValueError):
    """The request can never succeed as it is: change it. Nothing was written."""


class ReadOnlyError(InvalidRequestError):
    """The store may only be read here: open it where it may be written to. Nothing was written."""


class AbortedError(TxnError):
    """The transaction wrote nothing and never will. The subclass says whether to run it again.

    words: why; facts: what it is about, by name; reason: both, as the message has them.
    """

    def __init__(self, words: str, *, transaction: bytes | None = None, **facts: object) -> None:
        self.reason = annotate(words, **facts)
        super().__init__(annotate(self.reason, transaction=transaction))
        self.words = words
        self.facts = {name: fact for name, fact in facts.items() if fact is not None}
        self.transaction = transaction

    def add_cause(self, cause: TxnError) -> None:
        """Add to the facts why what was in the way stays there."""
        self.facts["cause"] = str(cause)
        self.reason = annotate(self.words, **self.facts)
        self.args = (annotate(self.reason, transaction=self.transaction),)
        self.__cause__ = cause


class ConflictError(AbortedError):
    """Another transaction was in the way: run it again. Names the key and its holder."""

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
    """An assertion was false under the locks: read again and decide. Names it and what was seen."""

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


class CommitOutcomeUnknown(TxnError):
    """The decision was sent and could not be read back: ask `engine.outcome(error.transaction)`."""

    def __init__(self, transaction: bytes, cause: BaseException | None = None) -> None:
        why = None if cause is None else str(cause) or type(cause).__name__
        super().__init__(annotate("commit outcome unknown", transaction=transaction, cause=why))
        self.transaction = transaction
        self.__cause__ = cause


class CorruptRowError(TxnError):
    """Stored bytes do not decode: keep the row and look at it. It is never deleted or guessed.

    place: the row key of the transaction, or the key of the cell, where that is known. The message
    may have the bytes as well: it is no line for a log.
    """

    def __init__(self, message: str = "", **facts: object) -> None:
        super().__init__(message, **facts)
        self.place = facts.get("row") or facts.get("transaction") or facts.get("key")


class StoreError(TxnError):
    """The store could not do what it was asked: mend the store or the connection.

    call: which call of the store it was, where somebody measures them.
    """

    call: str | None = None


class StoreClosedError(StoreError):
    """This program closed the store, or it was busy when the program was forked, or its files were
    replaced: this object can be used no more. The call had no effect."""


class NotApplied(StoreError):
    """The call certainly had no effect: it is safe to send it again."""


def deny(error: TxnError, words: str = "nothing was committed") -> TxnError:
    """Return the error of a request of which nothing happened and nothing will: where the store
    knows less of its own call, one that says so. words: what precedes its message, if anything."""
    if isinstance(error, NotApplied | StoreClosedError) or not isinstance(error, StoreError):
        return error
    denied = NotApplied(f"{words}: {error}" if words else str(error))
    denied.__cause__ = error
    return denied


def raise_denial(error: TxnError, words: str = "nothing was committed") -> NoReturn:
    """Raise what `deny` returns."""
    denied = deny(error, words)
    raise denied from denied.__cause__


class MaybeApplied(StoreError):
    """The call may have taken effect, now or later: read before doing anything else."""


class TableUnavailable(MaybeApplied):
    """A table that the call needs, or a family of it, is missing or disabled, or refuses the call,
    as one that is read-only does. It is not asked again, as to change that is an operator's work;
    its part in other tables may have taken effect.
    """

    def __init__(self, message: str, table: bytes) -> None:
        super().__init__(message)
        self.table = table
