"""Requests and assertions: what each means, which keys it needs, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import and_, or_
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txn.assertions import (
    MAX_DEPTH,
    And,
    Assertion,
    Exact,
    GreaterThan,
    Not,
    Or,
    Some,
    Version,
    bind,
    holds,
    list_keys,
)
from txn.errors import InvalidRequestError
from txn.model import Cell, Delete, Key, Mutation
from txn.request import MAX_TOKEN, Request, add_marker, bind_key, bind_request

A, B, C = Key("a", "d", "x", "t"), Key("b", "d", "x", "t"), Key("c", "d", "x", "t")
CELLS = {A: Cell(b"5", 10), B: Cell(b"50", 20), C: None}


@pytest.mark.parametrize(
    ("assertion", "expected"),
    [
        (Exact(A, b"5"), True),
        (Exact(A, b"6"), False),
        (Exact(C, b"5"), False),
        (Some(A), True),
        (Some(C), False),
        (GreaterThan(A, b"4"), True),
        (GreaterThan(A, b"5"), False),
        (GreaterThan(B, b"5"), True),  # as bytes: "50" comes after "5"
        (GreaterThan(B, b"6"), False),  # and before "6"
        (GreaterThan(C, b"\0"), False),
        (Version(A, 10), True),
        (Version(A, 11), False),
        (Version(A, None), False),
        (Version(C, None), True),
        (Version(C, 10), False),
        (Not(Some(C)), True),
        (And(Some(A), Some(B)), True),
        (And(Some(A), Some(C)), False),
        (Or(Some(C), Some(B)), True),
        (Or(Some(C), Exact(A, b"6")), False),
    ],
)
def test_holds(assertion: Assertion, expected: bool) -> None:
    assert holds(assertion, CELLS) is expected


def test_an_assertion_prints_as_it_is_written() -> None:
    tree = ~(Some(A) | Exact(B, "1")) & GreaterThan(C, "2")
    assert repr(tree) == f"(~({Some(A)!r} | {Exact(B, '1')!r}) & {GreaterThan(C, '2')!r})"
    assert eval(repr(tree)) == tree


def test_keys_are_found_everywhere_in_the_tree() -> None:
    tree = (Exact(A, "1") | ~GreaterThan(B, "1")) & (Some(C) | Version(A, 3))
    assert list(list_keys(tree)) == [A, B, C, A]


trees = st.recursive(
    st.sampled_from([Exact(A, b"5"), Some(C), GreaterThan(B, b"6"), Version(C, None)]),
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(lambda parts: And(*parts), st.lists(inner, min_size=2, max_size=4))
        | st.builds(lambda parts: Or(*parts), st.lists(inner, min_size=2, max_size=4))
    ),
)


@given(trees, trees)
@settings(max_examples=50)
def test_trees_follow_de_morgan_and_are_kept_by_binding(tree: Assertion, other: Assertion) -> None:
    assert holds(~(tree & other), CELLS) is holds(~tree | ~other, CELLS)
    moved = bind(tree, lambda key: key._replace(table=b"other"))
    assert {key.table for key in list_keys(moved)} == {b"other"}
    assert bind(moved, lambda key: key._replace(table=b"t")) == tree


@pytest.mark.parametrize(
    ("assertion", "message"),
    [
        (True, "not an assertion"),
        (None, "not an assertion"),
        (Not("x"), "not an assertion"),  # type: ignore[arg-type]
        (And(Some(A)), "And takes two or more"),
        (Or(), "Or takes two or more"),
        (And(Some(A), 7), "not an assertion"),  # type: ignore[arg-type]
        (Some("a"), "not a Key"),  # type: ignore[arg-type]
        (Exact(Key("a", "d", "x_lock"), b"1"), "reserved"),
        (Exact(A, b""), "empty"),
        (Version(A, 0), "version must be"),
        (Version(A, 1 << 63), "version must be"),
        (Version(A, "1"), "version must be"),  # type: ignore[arg-type]
    ],
)
def test_malformed_assertions_are_refused(assertion: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        bind(assertion, partial(bind_key, table=None))


def test_bottomless_trees_are_refused() -> None:
    tree: Assertion = Some(A)
    for _ in range(MAX_DEPTH):
        tree = Not(tree)
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        bind(tree, partial(bind_key, table=None))


@pytest.mark.parametrize("assertion", [Version(A, 1), ~Some(A), Some(A) & Some(B)])
def test_who_joins_with_words_is_told_what_to_write(assertion: Assertion) -> None:
    """`Exact(..) and Some(..)` was the second one alone, and committed what the first forbids."""
    with pytest.raises(TypeError, match=r"&, \| and ~"):
        bool(assertion)


@pytest.mark.parametrize(("join", "kind"), [(or_, Or), (and_, And)])
def test_a_chain_is_flat_however_long_it_is(
    join: Callable[[Any, Any], Any], kind: Callable[..., Any]
) -> None:
    parts = [Exact(Key("r", "d", f"x{number}", "t"), "1") for number in range(1_000)]
    chain = reduce(join, parts)
    assert chain == kind(*parts)
    assert bind(chain, partial(bind_key, table=None)) == chain
    seen = dict.fromkeys((part.key for part in parts), Cell(b"1", 1))
    assert holds(chain, seen)
    left, right = join(parts[0], parts[1]), join(parts[2], parts[3])
    assert join(left, right) == kind(*parts[:4])


def test_what_joins_in_another_way_keeps_its_shape() -> None:
    a, b, c = (Some(Key(row, "d", "x", "t")) for row in "abc")
    assert (a & b) | c == Or(And(a, b), c)
    assert a & (b | c) == And(a, Or(b, c))
    assert ~(a | b) | c == Or(Not(Or(a, b)), c)


A, B = Key("a", "d", "x"), Key("b", "d", "x")


@pytest.mark.parametrize(
    ("mutations", "assertions", "message"),
    [
        ([], [], "needs a mutation or an assertion"),
        ([Mutation(A, b"1"), Delete(A)], [], "mutated twice"),
        ([A], [], "not a Mutation or Delete"),
        ([], [True], "not an assertion"),
        (Mutation(A, b"1"), [], "mutations must be a list"),
        ([Delete(A)], Some(A), "assertions must be a list"),
        ("a", [], "mutations must be a list"),
        ([Mutation(A, b"")], [], "empty"),
        ([Delete("a")], [], "not a Key"),  # type: ignore[arg-type]
        ([Delete(Key("a", "d", "x_tag"))], [], "reserved"),
    ],
)
def test_bad_requests_are_refused(mutations: object, assertions: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        bind_request(mutations, assertions, table=b"t")  # type: ignore[arg-type]


def test_a_key_needs_a_table_from_somewhere() -> None:
    with pytest.raises(InvalidRequestError, match="no default table"):
        bind_request([Delete(A)])


@pytest.mark.parametrize("token", ["", "x" * (MAX_TOKEN + 1), 7])
def test_bad_tokens_are_refused(token: object) -> None:
    with pytest.raises(InvalidRequestError, match="once must"):
        bind_request([Delete(A)], once=token, table=b"t")


def test_labels_are_text() -> None:
    assert bind_request([Delete(A)], labels={"job": "42"}, table=b"t").labels == {"job": "42"}
    with pytest.raises(InvalidRequestError, match="labels must be text"):
        bind_request([Delete(A)], labels={"job": 42}, table=b"t")
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        bind_request([Delete(A)], labels={"file": "\udcff"}, table=b"t")


def test_the_marker_is_asserted_first_and_put_with_the_rest() -> None:
    marker = Key("once.k", "t", "done", "txn")
    request = add_marker(Request((Delete(A),), (Some(A),)), marker, b"row")
    assert request.assertions == (Not(Some(marker)), Some(A))
    assert request.mutations == (Delete(A), Mutation(marker, b"row"))
