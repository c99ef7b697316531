"""A commit request of a user, its checks before anything is written, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, get_args

from txn.assertions import Assertion, Not, Or, Some, bind, list_keys
from txn.errors import InvalidRequestError
from txn.model import (
    Delete,
    Key,
    Mutation,
    as_bytes,
    check_items,
    check_key,
    check_value,
    check_whole,
    new_tuple,
)

Ack = Literal["complete", "decided"]
ACKS: tuple[str, ...] = get_args(Ack)
TRANSACTIONS = "txn"
"""The default name of the transaction table."""

MAX_TOKEN = 1024
MAX_CONTENT = 1 << 20
MAX_ANSWER = 1 << 14
MAX_DEADLINE_MS = 10**12
MAX_RETENTION_MS = 1 << 53  # the largest integer that every JSON reader keeps exactly


@dataclass(frozen=True, slots=True)
class Request:
    """Mutations that happen together, and only if every assertion holds.

    once: a token; of all requests with this token, from anywhere, at most one commits.
    once_retention_ms: the caller's promise that no request with this token comes later than that
    after the commit, so that fsck may forget the token; None: it is kept for ever.
    labels: short texts for people, kept in the transaction row.
    validate: whether the keys that it asserts and does not mutate are validated, not locked: see
    `Policy.assertions`; None: as the client's policy says.
    once_content: what the token stands for; None: the mutations and assertions, in any order.
    answer: of a block: its encoded result, or empty; what it writes depends on what it reads, so
    its token stands for a given content only.
    """

    mutations: tuple[Mutation | Delete, ...]
    assertions: tuple[Assertion, ...] = ()
    once: bytes | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    once_retention_ms: int | None = None
    validate: bool | None = None
    once_content: bytes | None = None
    answer: bytes | None = None
    _keys: tuple[Key, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def keys(self) -> tuple[Key, ...]:
        """Each distinct key of the mutations and assertions, mutated keys first."""
        keys = self._keys
        if keys is None:
            found: dict[Key, None] = {}
            for mutation in self.mutations:
                found[mutation.key] = None
            for assertion in self.assertions:
                for key in list_keys(assertion):
                    found[key] = None
            keys = tuple(found)
            object.__setattr__(self, "_keys", keys)
        return keys


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction.

    transaction: its row key.
    timestamp: of all its cells (ms).
    repeated: an earlier transaction with this `once` token had committed; this call changed
    nothing.
    complete: every lock is released; otherwise this engine or another client is doing it.
    Known only if repeated: digest: of what the token stands for; None: it was not given.
    has_answer: whether the result of its block was kept, as `answer`.
    """

    transaction: bytes
    timestamp: int
    repeated: bool = False
    complete: bool = True
    digest: bytes | None = field(default=None, compare=False)
    has_answer: bool = field(default=False, compare=False)
    answer: Any = field(default=None, compare=False)


class Outcome(Enum):
    """The known outcome of a transaction. UNKNOWN: its row is absent, or poisoned, so it may be
    either."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"


class Terms(NamedTuple):
    """What a block's commit has beside its changes and assertions: see `Engine.commit`."""

    once: str | bytes | None = None
    labels: Mapping[str, str] | None = None
    once_retention_ms: int | None = None
    ack: Ack = "complete"
    validate: bool | None = None
    once_content: str | bytes | None = None

    @property
    def of_request(self) -> dict[str, Any]:
        """Those that a Request keeps, by name."""
        once, labels, retention_ms, _, validate, content = self
        own = {"once": once, "labels": labels, "once_retention_ms": retention_ms}
        return own | {"validate": validate, "once_content": content}


def as_request(given: object) -> Request:
    """Return a Request, or (mutations, assertions), as a Request that is not checked yet; raise
    InvalidRequestError for anything else."""
    if isinstance(given, Request):
        return given
    if not isinstance(given, tuple) or len(given) != 2:
        raise InvalidRequestError("neither a Request nor (mutations, assertions)", given=given)
    mutations, assertions = given
    return Request(
        tuple(check_items("mutations", mutations)), tuple(check_items("assertions", assertions))
    )


def bind_request(
    mutations: Iterable[object],
    assertions: Iterable[object] = (),
    *terms: Any,
    table: bytes | None = None,
    **others: Any,
) -> Request:
    """Return a valid request whose keys all name a table; raise InvalidRequestError if invalid.

    table: the default for keys that name none. terms, others: see `make_request`.
    """
    known: dict[Key, Key] = {}  # as they were given, and bound

    def bind_known(key: object) -> Key:
        return known[key] if type(key) is Key and key in known else bind_key(key, table)

    changes: dict[Key, Mutation | Delete] = {}
    for mutation in check_items("mutations", mutations):
        change: Mutation | Delete
        match mutation:
            case Mutation(key, value):
                bound = known[key] = bind_key(key, table)
                check_value(bound, value)
                change = mutation if bound is key else Mutation(bound, value)
            case Delete(key):
                bound = known[key] = bind_key(key, table)
                change = mutation if bound is key else Delete(bound)
            case _:
                message = "not a Mutation or Delete"
                raise InvalidRequestError(message, given=mutation, type=type(mutation).__name__)
        if bound in changes:
            raise InvalidRequestError("key is mutated twice", key=bound)
        changes[bound] = change
    return make_request(
        tuple(changes.values()),
        tuple([bind(each, bind_known) for each in check_items("assertions", assertions)]),
        *terms,
        **others,
    )


def make_request(
    mutations: tuple[Mutation | Delete, ...],
    assertions: tuple[Assertion, ...],
    once: str | bytes | None = None,
    labels: Mapping[str, str] | None = None,
    once_retention_ms: int | None = None,
    *,
    validate: bool | None = None,
    once_content: str | bytes | None = None,
    answer: bytes | None = None,
    may_be_empty: bool = False,
) -> Request:
    """Return a request of valid items; raise InvalidRequestError if the rest is invalid.
    may_be_empty: as that of a transaction in parts."""
    if not (mutations or assertions or may_be_empty):
        raise InvalidRequestError("a transaction needs a mutation or an assertion")
    token = None if once is None else as_bytes("once", once)
    if token is not None and not 1 <= len(token) <= MAX_TOKEN:
        message = "once must have 1 to 1024 bytes"
        raise InvalidRequestError(message, bytes=len(token), limit=MAX_TOKEN)
    if once_content is not None:
        once_content = as_bytes("once_content", once_content)
        if token is None or len(once_content) > MAX_CONTENT:
            words = "once_content needs once, and has at most 1 MiB"
            raise InvalidRequestError(words, bytes=len(once_content), limit=MAX_CONTENT)
    shown = {} if labels is None or labels == {} else _check_labels(labels)
    if once_retention_ms is not None:
        _check_retention(once, once_retention_ms)
    if validate is not None and not isinstance(validate, bool):
        raise InvalidRequestError("validate must be True, False or None", given=validate)
    items = mutations, assertions, token, shown, once_retention_ms, validate
    return Request(*items, once_content, answer)


def add_marker(request: Request, marker: Key, value: bytes) -> Request:
    """Return the request with its `once` marker, whose value includes the retention."""
    mutations = (*request.mutations, Mutation(marker, value))
    assertions = (Not(Some(marker)), *request.assertions)
    return Request(mutations, assertions, request.once, request.labels, validate=request.validate)


def lock_request(list_keys: Iterable[Key]) -> Request:
    """Return a request that locks these keys and changes nothing. Its assertions always hold, and
    only record the keys in the row, so that other clients can release the locks."""
    return Request((), tuple(Or(Some(key), Not(Some(key))) for key in list_keys))


def bind_key(key: object, table: bytes | None) -> Key:
    """Return a valid key that names its table; raise InvalidRequestError if it is invalid."""
    bound = check_key(key)
    row, family, column, own = bound
    if own is not None:
        return bound
    if table is None:
        raise InvalidRequestError("key names no table and there is no default table", key=key)
    return new_tuple(Key, (row, family, column, table))


def _check_retention(once: str | bytes | None, retention_ms: int) -> None:
    if once is None:
        raise InvalidRequestError("once_retention_ms is a promise about a token: give once as well")
    check_whole("once_retention_ms", retention_ms, 1)
    if retention_ms > MAX_RETENTION_MS:
        message = "once_retention_ms is too long: leave it out, and the token is kept for ever"
        raise InvalidRequestError(message, given=retention_ms, limit=MAX_RETENTION_MS)


def check_deadline(deadline_ms: int | None) -> None:
    """Raise InvalidRequestError unless None, or an integer of ms that can be added to a clock's."""
    if deadline_ms is not None:
        check_whole("deadline_ms", deadline_ms)
        if abs(deadline_ms) > MAX_DEADLINE_MS:
            message = f"deadline_ms must be at most {MAX_DEADLINE_MS}"
            raise InvalidRequestError(message, deadline_ms=deadline_ms)


def _check_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(labels, Mapping):
        raise InvalidRequestError("labels must be a dictionary", given=labels)
    for name, text in labels.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidRequestError("labels must be text", name=name, value=text)
        as_bytes("labels", name + text)
    return dict(labels)
