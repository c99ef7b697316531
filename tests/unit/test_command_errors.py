"""What commands say of mistakes: as a person reads it, and with what mends it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

import txn
from recovery.commands import main
from recovery.commands.requests import parse_request
from recovery.text import COMMANDS, error_text
from txn.errors import ConflictError, InvalidRequestError, StoreError, TableUnavailable, deny
from txn.model import Cell, Key

KEY = Key("r\n", "d", "x'y", "t")
Run = Callable[..., tuple[object, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: str, given: str = "") -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["txn", *arguments])
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(given.encode())))
        monkeypatch.setenv("COLUMNS", "200")
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        return code, capsys.readouterr().err

    return call


@pytest.fixture
def store(tmp_path: Path, run: Run) -> str:
    uri = f"embedded://{tmp_path}/bank"
    assert run("table", "create", "t", "d", "--store", uri) == (0, "")
    return uri


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ConflictError("key is locked", key=KEY, holder=b"h"),
            r"key is locked key=t/r\x0a/d:x'y holder=h",
        ),
        (StoreError("odd", known=[b"a", b"\x00"]), r"odd known=[a, \x00]"),
        (
            InvalidRequestError("use the shell", table=b"t", command="create 't', {X => 'y'}"),
            "use the shell table=t command=\"create 't', {X => 'y'}\"",
        ),
        (StoreError("odd", cell=Cell(b"7", 3), holder=b""), "odd cell=7 at 3 holder=(empty)"),
        (
            deny(TableUnavailable("the table refuses it table=b't' cause='no'", b"t")),
            "nothing was committed: the table refuses it table=t cause=no",
        ),
        (InvalidRequestError("no key", key=Key("r", "d", "x")), "no key key=/r/d:x"),
        (FileNotFoundError(2, "No such file or directory", "x"), "No such file or directory: x"),
        (
            StoreError("odd", known=["a", "b"], given=("c", ""), text="\\x"),
            r"odd known=[a, b] given=(c, '') text=\x",
        ),
        (StoreError("odd", cause=str(TimeoutError("[Errno 111] no"))), "odd cause='no'"),
        (StoreError("odd", value=b"a 'b' c"), "odd value=a 'b' c"),
        (StoreError("outer", cause="b'a' in \"b\""), "outer cause='a in \"b\"'"),
    ],
    ids=str,
)
def test_errors_are_told_without_the_marks_of_python(error: Exception, expected: str) -> None:
    assert error_text(error) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "an object is needed"),
        ('{"mutation": []}', "the fields are not right"),
        ('{"mutations": [{"put": null}]}', r"""a mutation is.*given='{"put": null}'$"""),
        ("null", "an object is needed.*given='null'$"),
        ('{"mutations": [{"put": "t/r", "value": "1"}]}', "a key is table/row/family:column"),
    ],
)
def test_a_document_of_the_wrong_shape_is_a_document(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{reason}"):
        parse_request(text)


def test_a_table_that_is_missing_is_made_by_a_command(run: Run, store: str) -> None:
    expected = "error: no such table: create it with `txn table create` table=u key=u/r/d:x\n"
    assert run("get", "u/r/d:x", "--store", store) == (2, expected)
    document = '{"mutations": [{"put": "u/r/d:x", "value": "1"}]}'
    assert run("commit", "-", "--store", store, given=document) == (2, expected)


def test_a_path_is_no_store_but_may_be_one(run: Run, store: str) -> None:
    path = store.removeprefix("embedded://")
    code, said = run("ls", "--store", path)
    assert (code, f"did you mean {store} " in said) == (2, True)
    code, said = run("ls", "--store", f"embedded:/{path}")
    assert (code, f"did you mean {store} " in said) == (2, True)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("fsck",), "--grace"),
        (("fsck",), "--retention"),
        (("fsck", "--repair"), "--retention"),
        (("ls",), "--older-than"),
        (("convert", "fenced"), "--retention"),
        (("serve", "--thrift2", "0"), "--idle"),
        (("serve", "--thrift2", "0"), "--request"),
        (("serve", "--thrift2", "0"), "--stop-grace"),
        (("serve", "--thrift2", "0"), "--keep-deletes"),
    ],
)
def test_a_bad_duration_names_its_option(
    run: Run, store: str, command: tuple[str, ...], option: str
) -> None:
    code, said = run(*command, "--store", store, option, "soon")
    assert code == 2
    assert f"Invalid value for '{option}': a duration is a number and" in said


@pytest.mark.parametrize("said", COMMANDS)
def test_the_library_says_what_commands_translate(said: str) -> None:
    sources = (path.read_text() for path in Path(txn.__file__).parent.rglob("*.py"))
    assert any(said in re.sub(r'"\s*\n\s*"', "", source) for source in sources)


def test_a_wrong_transaction_table_of_a_server_names_the_option(run: Run) -> None:
    code, said = run("get", "t/r/d:x", "--store", "txn://127.0.0.1:1", "--transactions", "x")
    assert (code, "own --transactions" in said) == (2, True)
