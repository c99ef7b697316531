"""Why tables refuse a request, in reasons that a service turns into HBase's own exceptions."""

from __future__ import annotations

from typing import Literal

from txn.errors import InvalidRequestError, annotate

Reason = Literal[
    "table not found",
    "table exists",
    "table not enabled",
    "table not disabled",
    "no such column family",
    "namespace not found",
    "namespace exists",
    "constraint",
    "illegal argument",
    "do not retry",
    "retries exhausted",
]


class Refused(InvalidRequestError):
    """The request can never succeed as it is; `reason` names HBase's error.

    `illegal argument`: HBase's client finds it before it sends anything (IllegalArgumentException).
    `do not retry`: only the server finds it.
    `constraint`: the server's ConstraintException (namespaces).
    `retries exhausted`: the server fails in a way that its clients retry, in vain, for a minute.
    """

    def __init__(self, reason: Reason, message: str, **facts: object) -> None:
        super().__init__(annotate(message, **facts))
        self.reason: Reason = reason
        self.facts = facts
