"""What the Spark tests commit: in a module of its own, which Python workers can import."""

from __future__ import annotations

from collections import Counter

from txn import Key, Mutation, Request, Some
from txn.protocol.row import decode_row, is_row_key, parent_of
from txn.protocol.statuses import Status
from txn.stores import open_store


def absent_request(row: int) -> Request:
    """Return the transaction that puts a row which must not be there yet."""
    key = Key(f"{row:05}", "f", "value")
    return Request((Mutation(key, str(row)),), (~Some(key),))


def token(row: int) -> str:
    """Return a row's token."""
    return f"row/{row}"


def list_statuses(
    uri: str, transactions: str = "txn"
) -> tuple[list[Status | None], Counter[Status | None]]:
    """Return the statuses of transactions, and those of parts."""
    store = open_store(uri)
    try:
        found = [row for row in store.scan(transactions.encode()) if is_row_key(row.row)]
    finally:
        store.close()
    rows = [decode_row(row) for row in found]
    wholes = [row.status for row in rows if parent_of(row.row_key) is None]
    return wholes, Counter(row.status for row in rows if parent_of(row.row_key))


def statuses(uri: str) -> Counter[str]:
    """Return how many transaction rows have each status."""
    wholes, parts = list_statuses(uri)
    return Counter(str(status) for status in [*wholes, *parts.elements()])


def patch_request(row: dict[str, object]) -> Request:
    """Return the transaction that puts a row of a data frame over what is there."""
    return Request((Mutation(Key(str(row["id"]), "f", "v"), str(row["v"])),))
