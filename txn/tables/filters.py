"""HBase's filter language: what can be said, and `parse`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter; what it does is in `txn.tables.filtering`."""


def parse(text: bytes) -> Filter:
    """Return the filter that the text says; Refused (illegal argument) names the bad place."""
    raise NotImplementedError
