"""`txn ping`: whether a store answers, at the cost of one row."""

from __future__ import annotations

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    JsonOption,
    StoreOption,
    TransactionsOption,
    print_result,
)
from recovery.opening import open_any_store


def ping(
    *,
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Read one row of the store, which names the protocol of its database: for health checks.

    Exit code 0: the store answers, with or without a transaction table. 2: it does not.

    Example: txn ping --store hbase://zk1,zk2
    """
    with open_any_store(store, transactions) as context:
        is_there = context.store.describe(context.table) is not None
        protocol = context.rules.name if is_there else None
    about = f"has the protocol {protocol}" if protocol else "is not there yet"
    line = f"the store answers; transaction table {transactions} {about}"
    print_result(as_json, {"transactions": transactions, "protocol": protocol}, line)
