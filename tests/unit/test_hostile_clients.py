"""Requests and files that are made to harm: texts without an end, deep filters, open tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from txn.errors import InvalidRequestError
from txn.host.tokens import MOST_PEERS, WrongTokens, read_token
from txn.server.connection import LONGEST_TEXT
from txn.tables.filters.lists import make_filter
from txn.tables.filters.parsing import MOST_LEVELS, parse_filter
from txn.tables.operations import Refused

SIMPLE = b"PageFilter(1)"


@pytest.mark.parametrize(
    "text",
    [
        b"SKIP " * 20_000 + SIMPLE,
        (b"(" + SIMPLE + b" AND (" + SIMPLE + b" OR ") * 5_000 + SIMPLE + b"))" * 5_000,
    ],
)
def test_a_deep_filter_is_refused_with_the_limit(text: bytes) -> None:
    """The gateway answered with an internal error."""
    with pytest.raises(Refused, match=f"more than {MOST_LEVELS} levels of filters"):
        parse_filter(text)


def test_long_lists_of_filters_and_parentheses_are_not_deep() -> None:
    make_filter(parse_filter(b" AND ".join([SIMPLE] * 5_000)))
    make_filter(parse_filter(b"(" * 5_000 + SIMPLE + b")" * 5_000))
    make_filter(parse_filter(b"SKIP " * (MOST_LEVELS - 1) + SIMPLE))


@pytest.mark.parametrize(
    "text", [b"X" * 1_000_000, SIMPLE + b" " + b"'" * 1_000_000, b"(" * 100_000]
)
def test_the_refusal_of_a_long_filter_is_short(text: bytes) -> None:
    """20 MB went into the log, and back."""
    with pytest.raises(Refused, match="not a filter") as caught:
        parse_filter(text)
    assert len(str(caught.value)) < LONGEST_TEXT


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o666])
def test_a_token_that_others_can_read_is_refused_with_a_remedy(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "my token"
    file.write_text("s3cret")
    file.chmod(mode)
    with pytest.raises(InvalidRequestError) as caught:
        read_token(file)
    command = str(caught.value).rpartition(": ")[2]
    assert command == f"chmod 600 '{file}'"
    file.chmod(0o640)
    assert read_token(file) == "s3cret"


def test_wrong_tokens_of_many_addresses_take_no_memory() -> None:
    logged: list[str] = []
    wrong = WrongTokens(logged.append)
    for number in range(2 * MOST_PEERS):
        wrong.note(f"10.0.0.{number}")
    assert len(wrong._counts) == MOST_PEERS
    assert logged[0] == "a wrong token peer='10.0.0.0' count=1"
