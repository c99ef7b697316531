"""Which settings a Spark session on this machine gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from txn.spark.session import choose_sockets

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("master", [None, "local[3]", "local-cluster[1,1,1024]"])
def test_workers_on_this_machine_are_reached_by_unix_sockets(master: str | None) -> None:
    """Through TCP each task of a worker in use waits 40 ms: a week's flights lost seconds."""
    settings = choose_sockets(Path("/tmp/folder"), master)
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.python.unix.domain.socket.dir"] == "/tmp/folder"


@pytest.mark.parametrize(
    ("folder", "master"),
    [("/tmp/" + "x" * 60, None), ("/tmp/" + "ü" * 30, None), ("/tmp/folder", "spark://host:7077")],
)
def test_nothing_is_set_where_sockets_cannot_be_made(folder: str, master: str | None) -> None:
    """The kernel refuses long paths, in which Spark's names are 41 bytes; and the folder is not
    there on other machines."""
    assert choose_sockets(Path(folder), master) == {}
