"""Passwords and tokens in URIs: no error, no repr and no page shows them, wherever they stand."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from itertools import product

import pytest

from recovery.commands.fsck import Ages
from recovery.console.settings import ConsoleSettings
from recovery.spark import Inspection
from txn.emulator.serving import Hosted
from txn.errors import TxnError
from txn.leases.databases import hide_password
from txn.leases.opening import parse_url
from txn.leases.service import LeaseService
from txn.locks.zookeeper import client as zookeeper
from txn.locks.zookeeper.client import parse_ensemble
from txn.spark.partitions import Access
from txn.stores import _EMBEDDED, gateway, open_store
from txn.stores.hbase.native import target
from txn.stores.options import HARMLESS, hide_login, split_uri

PLACES = ("zk:21x", "zk1:2181,zk2", "[::1]:2181")
PASSWORDS = ["SECRET", "1/SECRET", "1?SECRET", "1?a=SECRET", "1#SECRET", "S@SECRET/SECRET"]
PASSWORDS += ["1/?#SECRET", "SECRET?a=b", "?SECRET"]
SCHEMES = ("zookeeper", "hbase", "hbase+thrift2", "txn", "embedded", "hbaze")
LOGINS = [
    f"{begin}u:{password}@{place}/b"
    for begin, password, place in product(
        ("", *(scheme + sign for scheme in SCHEMES for sign in (":", "://"))), PASSWORDS, PLACES
    )
]
NAMED = ("pass=SECRET", "oauth_client_secret=SECRET", "SECRET", "%74oken=SECRET", "x=1&y=a@SECRET")
OPTIONS = [
    f"{place}?{name}"
    for place, name in product(
        ("hbase://zk", "hbase+thrift1://h", "txn://h", "embedded:///x"), NAMED
    )
]
DATABASES = (
    "postgresql+psycopg://u:SECRET@h/d",
    "postgresql+psycopg://u:SECRET/?#SECRET@h:port/d",
    "postgresql+psycopg://u:p@SECRET@h/d",
    "postgresql+psycopg://u:p@SECRET/SECRET@h/d",
    "postgresql+psycopg://h/d?oauth_client_secret=SECRET",
    "postgresql+psycopg://h/d?sslpassword=SECRET&colour=SECRET",
    "sqlite://u:SECRET@h/d",
)


def list_failures(open_it: Callable[[str], object], uri: str) -> str:
    """Return all that is said of a failure: its message, those of its causes, and its repr."""
    try:
        open_it(uri)
    except (TxnError, ValueError) as error:
        return "".join(traceback.format_exception(error, limit=0)) + repr(error)
    return ""


@pytest.mark.parametrize("uris", [LOGINS, OPTIONS], ids=["logins", "options"])
def test_no_error_shows_a_secret_of_a_uri(uris: Sequence[str]) -> None:
    """Errors go to logs. A password may contain any sign, and an option may have any name."""
    for uri in uris:
        assert "SECRET" not in hide_login(uri), uri
        for open_it in (open_store, lambda uri: parse_ensemble(split_uri(uri))):
            assert "SECRET" not in list_failures(open_it, uri), uri


@pytest.mark.parametrize("url", DATABASES)
def test_no_error_shows_a_secret_of_leases(url: str) -> None:
    said = list_failures(lambda url: LeaseService(parse_url(url)).close(), url)
    assert "SECRET" not in said
    if not said:
        assert "SECRET" not in hide_password(parse_url(url))


def test_options_that_are_shown_are_no_secrets() -> None:
    """An option is hidden unless somebody has said that it is harmless."""
    known = {*_EMBEDDED, *zookeeper.OPTIONS, *gateway._OPTIONS, *target._OPTIONS, "token_file"}
    assert known == HARMLESS
    assert hide_login("hbase://zk1:2181,zk2/x?tls=on&token=a") == (
        "hbase://zk1:2181,zk2/x?tls=on&token=***"
    )
    assert hide_login("embedded:///a@b/c?mode=ro") == "embedded:///a@b/c?mode=ro"
    assert hide_login("txn://u:p@h:1?x#y") == "txn://***@h:1?***#***"


@pytest.mark.parametrize("uri", ["txn://h:1?token=a@b", "hbase://zk?principal=hbase/_HOST@REALM"])
def test_an_at_in_an_option_is_none_of_a_login(uri: str) -> None:
    assert split_uri(uri).query == uri.partition("?")[2]


def test_what_has_secrets_shows_none_in_its_repr() -> None:
    uri = "txn://h:1?token=SECRET"
    for each in (
        Access(uri),
        ConsoleSettings(uri, "SECRET", locks=uri, leases=uri),
        Hosted("embedded:///SECRET", {"thrift2": 1}, "SECRET"),
        Inspection(uri, "txn", Ages(1, 1)),
        parse_ensemble(split_uri("zookeeper://u:SECRET@zk")),
    ):
        assert "SECRET" not in repr(each) + str(each)
    assert ConsoleSettings("txn://u:SECRET@h?a=b", "t").store_name == "txn://***@h"
