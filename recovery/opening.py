"""A store that is opened to be looked at, or mended: one that exists, whatever is in it.

Nothing here makes a store or a table: a mistyped path is an error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from txn.clock import SystemClock
from txn.errors import InvalidRequestError
from txn.policy import Policy
from txn.protocol.attempt import Context
from txn.protocol.rules import SIX_PHASE, find_rules, require_features
from txn.stores import open_store
from txn.watch import silent


def must_exist(uri: str) -> None:
    """Raise InvalidRequestError for a store that opening it would make."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise InvalidRequestError("not a URI", given=uri) from error
    if parts.scheme == "embedded" and not parts.netloc:  # else opening it says what is wrong
        path = Path(unquote(parts.path))
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            raise InvalidRequestError("no such store", path=str(path))


@contextmanager
def open_any_store(uri: str, transactions: str) -> Iterator[Context]:
    """Open a store that exists, whatever is in it."""
    must_exist(uri)
    clock = SystemClock()
    with closing(open_store(uri, clock)) as store:
        table = transactions.encode()
        rules = find_rules(store, table) if store.describe(table) else None
        rules = rules or SIX_PHASE
        yield Context(store, table, clock, random.SystemRandom(), Policy(), silent, rules)


@contextmanager
def open_store_of(uri: str, transactions: str, *, mends: bool = False) -> Iterator[Context]:
    """Open a store that has a transaction table, to look at it or, if it can do the database's
    protocol, to mend it."""
    with open_any_store(uri, transactions) as context:
        if context.store.describe(context.table) is None:
            raise InvalidRequestError("no such transaction table", table=transactions)
        if mends:
            require_features(context, context.rules)
        yield context
