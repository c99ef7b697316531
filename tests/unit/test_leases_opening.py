"""Which database leases are opened in, and what is said where that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from txn.errors import InvalidRequestError
from txn.leases import LeaseAlreadyExistsError, exclusive, open_leases, opening
from txn.leases.databases import hide_password
from txn.leases.opening import default_url


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, "sqlite:////h/.local/share/hbase-txn/leases.sqlite"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/d"}, "sqlite:////d/hbase-txn/leases.sqlite"),
        ({"HOME": "/h", "TXN_LEASES": "sqlite:////x"}, "sqlite:////x"),
    ],
)
def test_where_leases_are_kept_unless_it_is_said(
    environ: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All programs of a user must find the same file, with nothing set up."""
    monkeypatch.setattr(opening, "MACHINE", tmp_path / "none")
    assert default_url(environ) == expected


def test_where_a_machine_has_a_place_for_leases_they_are_kept_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its administrator has made it, and no user has to do anything. Who names others has these."""
    monkeypatch.setattr(opening, "MACHINE", tmp_path)
    assert default_url({"HOME": "/h"}) == f"sqlite:///{tmp_path}/leases.sqlite"
    assert default_url({"TXN_LEASES": "sqlite:////x"}) == "sqlite:////x"


def test_the_default_needs_no_setting_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is made, and the next program finds what is there."""
    monkeypatch.delenv("TXN_LEASES", raising=False)
    monkeypatch.setattr(opening, "MACHINE", tmp_path / "none")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with open_leases() as first, open_leases() as second:
        first.grab_lease([exclusive("d/t")], 3600)
        with pytest.raises(LeaseAlreadyExistsError):
            second.grab_lease([exclusive("d/t")], 3600)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("leases", "not the URL of a database"),
        ("mysql+pymysql://host/name", "leases are kept in one of these"),
        ("sqlite://", "name a file"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite:////tmp/x?mode=ro", "a file has no host, user or options"),
        ("sqlite://ann:secret@host//tmp/x", "a file has no host, user or options"),
        ("postgresql://host:abc/name", "not the URL of a database"),
        ("postgresql://[::1/name", "not the URL of a database"),
        ("postgresql://host:99999/name", "not a port"),
        ("postgresql+nope://host/name", "not the URL of a database"),
        (" postgresql://host/name", "not the URL of a database"),
        ("postgresql://host/name?colour=red", r"unknown options of PostgreSQL.*colour"),
        ("postgresql://host/name?port=abc", "not the URL of a PostgreSQL"),
        ("postgresql://host/name?autocommit=1", r"unknown options of PostgreSQL.*autocommit"),
        ("postgresql://host/name?prepare_threshold=x", "prepare_threshold is a whole number"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused(url: str, said: str) -> None:
    """Leases in memory would keep nobody else out."""
    with pytest.raises(InvalidRequestError, match=said):
        open_leases(url)


def test_a_password_is_not_shown() -> None:
    """Errors go to logs."""
    for url in ("ann:secret@host/name", "host/name?user=ann&password=secret&sslpassword=secret"):
        assert "secret" not in hide_password(make_url(f"postgresql+psycopg://{url}"))
