"""Requests as JSON documents: what is taken, and where an error says it is."""

from __future__ import annotations

import json

import pytest

from recovery.commands.requests import parse_request
from txn.assertions import And, Exact, GreaterThan, Not, Or, Some, Version
from txn.errors import InvalidRequestError
from txn.model import Delete, Key, Mutation
from txn.request import Request

KEY = Key("r", "f", "c", "t")
TEXT = "t/r/f:c"


def parsed(**parts: object) -> Request:
    return parse_request(json.dumps(parts))


def test_a_document_has_everything_that_a_request_has() -> None:
    assertions = [
        {"exact": TEXT, "value": "1"},
        {"greater": TEXT, "value": {"base64": "/w=="}},
        {"version": TEXT, "timestamp": None},
        {"or": [{"and": [{"some": TEXT}, {"version": TEXT, "timestamp": 7}]}, {"some": TEXT}]},
        {"not": {"some": TEXT}},
    ]
    request = parsed(
        mutations=[{"put": TEXT, "value": "é"}, {"delete": TEXT}],
        assertions=assertions,
        once={"base64": "AAE="},
        labels={"job": "load"},
    )
    assert request == Request(
        (Mutation(KEY, "é"), Delete(KEY)),
        (
            Exact(KEY, b"1"),
            GreaterThan(KEY, b"\xff"),
            Version(KEY, None),
            Or(And(Some(KEY), Version(KEY, 7)), Some(KEY)),
            Not(Some(KEY)),
        ),
        b"\0\1",
        {"job": "load"},
    )


def test_a_key_may_be_an_object_and_a_text_is_taken_literally() -> None:
    """Programs that write documents need not know about escapes; JSON has some of its own."""
    parts = {"table": "t", "row": {"base64": "AC8="}, "family": "f", "column": "a/b"}
    given = [{"delete": parts}, {"put": TEXT, "value": "\\x00"}]
    assert parsed(mutations=given).mutations == (
        Delete(Key(b"\0/", "f", "a/b", "t")),
        Mutation(KEY, b"\\x00"),
    )


@pytest.mark.parametrize(
    ("parts", "place"),
    [
        ({"mutation": []}, "mutation"),
        ({"mutations": [{"put": TEXT}]}, "mutations[0]"),
        ({"mutations": [{"put": TEXT, "value": 7}]}, "mutations[0].value"),
        ({"mutations": [{"put": TEXT, "value": {"base64": "?"}}]}, "mutations[0].value"),
        ({"mutations": [{"delete": TEXT, "value": "1"}]}, "mutations[0]"),
        ({"mutations": [{"delete": {"row": "r"}}]}, "mutations[0]"),
        ({"mutations": [{"delete": 7}]}, "mutations[0]"),
        ({"mutations": [{"delete": "r/f:c"}]}, "table/row/family:column"),
        ({"assertions": [{}]}, "assertions[0]"),
        ({"assertions": [{"same": TEXT}]}, "same"),
        ({"assertions": [{"some": TEXT, "not": {"some": TEXT}}]}, "assertions[0]"),
        ({"assertions": [{"not": {"or": [{"some": TEXT}, 7]}}]}, "assertions[0].not.or[1]"),
        ({"assertions": [{"version": TEXT, "timestamp": "7"}]}, "assertions[0]"),
        ({"once": 7}, "once"),
        ({"labels": []}, "labels"),
    ],
)
def test_an_error_names_the_place(parts: dict[str, object], place: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parsed(**parts)
    assert place in str(caught.value)


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_what_is_no_document_or_nested_too_deeply_is_refused(depth: int) -> None:
    """Some interpreters give up while they parse it, and some afterwards."""
    for text in ("", "{", "[]", "7", b"\xff"):
        with pytest.raises(InvalidRequestError):
            parse_request(text)
    assertion = '{"not": ' * depth + f'{{"some": "{TEXT}"}}' + "}" * depth
    with pytest.raises(InvalidRequestError, match="nested too deeply limit=100"):
        parse_request(f'{{"assertions": [{assertion}]}}')
