"""What a commit refuses, before anything is written."""

from __future__ import annotations

import pytest

from txn.assertions import Not, Some, Version
from txn.errors import InvalidRequestError
from txn.model import Delete, Key, Mutation
from txn.request import MAX_TOKEN, Request, add_marker, as_request, bind_request

A, B = Key("a", "d", "x"), Key("b", "d", "x")


@pytest.mark.parametrize(
    ("mutations", "assertions", "message"),
    [
        ([], [], "needs a mutation or an assertion"),
        ([Mutation(A, b"1"), Delete(A)], [], "mutated twice"),
        ([A], [], "not a Mutation or Delete"),
        ([Some(A)], [], "not a Mutation or Delete"),
        ([], [Mutation(A, b"1")], "not an assertion"),
        ([], [True], "not an assertion"),
        (Mutation(A, b"1"), [], "mutations must be a list"),
        ([Delete(A)], Some(A), "assertions must be a list"),
        (A, [], "mutations must be a list"),
        ("a", [], "mutations must be a list"),
        (7, [], "mutations must be a list"),
        ([Mutation(A, b"")], [], "empty"),
        ([Delete("a")], [], "not a Key"),
        ([Delete(Key("a", "d", "x_tag"))], [], "reserved"),
    ],
)
def test_bad_requests_are_refused(mutations: object, assertions: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        bind_request(mutations, assertions, table=b"t")  # type: ignore[arg-type]


def test_a_pair_of_lists_is_a_request() -> None:
    assert as_request(([Delete(A)], [Some(B)])) == Request((Delete(A),), (Some(B),))
    with pytest.raises(InvalidRequestError, match="neither a Request"):
        as_request([Delete(A)])


def test_a_key_needs_a_table_from_somewhere() -> None:
    with pytest.raises(InvalidRequestError, match="no default table"):
        bind_request([Delete(A)])


@pytest.mark.parametrize("token", ["", "x" * (MAX_TOKEN + 1), 7])
def test_bad_tokens_are_refused(token: object) -> None:
    with pytest.raises(InvalidRequestError, match="once must"):
        bind_request([Delete(A)], once=token, table=b"t")  # type: ignore[arg-type]


def test_labels_are_text() -> None:
    assert bind_request([Delete(A)], labels={"job": "42"}, table=b"t").labels == {"job": "42"}
    with pytest.raises(InvalidRequestError, match="labels must be text"):
        bind_request([Delete(A)], labels={"job": 42}, table=b"t")  # type: ignore[dict-item]
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        bind_request([Delete(A)], labels={"file": "\udcff"}, table=b"t")


def test_the_marker_is_asserted_first_and_put_with_the_rest() -> None:
    marker = Key("once.k", "t", "done", "txn")
    request = add_marker(Request((Delete(A),), (Some(A),)), marker, b"row")
    assert request.assertions == (Not(Some(marker)), Some(A))
    assert request.mutations == (Delete(A), Mutation(marker, b"row"))


@pytest.mark.parametrize("timestamp", [0, -1, 1 << 63, 1 << 70, "5", 1.5])
def test_a_version_is_a_timestamp_that_a_cell_can_have(timestamp: object) -> None:
    with pytest.raises(InvalidRequestError, match="version must be a timestamp"):
        bind_request([], [Version(Key("r", "f", "q", "t"), timestamp)])  # type: ignore[arg-type]
