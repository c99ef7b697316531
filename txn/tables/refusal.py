"""Why tables refuse a request, in words that a service turns into HBase's own exceptions."""

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
    """The request can never succeed as it is; `reason` says which of HBase's errors it is.

    `illegal argument` is what HBase's client finds before it sends anything (an
    IllegalArgumentException in Java); `do not retry` what only the server finds, and `constraint`
    its ConstraintException (namespaces); `retries exhausted` what the server fails at in such a way
    that its clients ask again, in vain, for a minute.
    """

    def __init__(self, reason: Reason, message: str, **facts: object) -> None:
        super().__init__(annotate(message, **facts))
        self.reason: Reason = reason
        self.facts = facts
