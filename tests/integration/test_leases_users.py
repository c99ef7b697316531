"""Leases of a machine, between its users: what a folder that an administrator has made is good for.

As root the tests become other users, else they are one user who stands for all.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import txn
from txn.errors import InvalidRequestError, StoreError
from txn.leases import LeaseAlreadyExistsError, exclusive, open_leases, opening

GROUP = 61_000
ANN, BOB, EVE = 61_001, 61_002, 61_003
AN_HOUR_S = 3_600
NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def others_can_read(folder: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in [folder, *folder.parents])


HAS_OTHERS = os.getuid() == 0 and others_can_read(Path(txn.__file__).parent)
"""Whether a process can become another user, and still load what is not loaded yet."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder, made as docs/leases.md says; pytest's own are for one user."""
    monkeypatch.delenv(opening.VARIABLE, raising=False)
    place = Path(tempfile.mkdtemp(prefix="leases-of-all-"))
    place.chmod(0o755)
    open_leases(f"sqlite:///{place}/loads-what-others-cannot").close()
    folder = place / "hbase-txn"
    monkeypatch.setattr(opening, "MACHINE", folder)
    folder.mkdir()
    if HAS_OTHERS:
        os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    yield folder
    shutil.rmtree(place)


def as_user(uid: int, groups: list[int], what: Callable[[], object]) -> None:
    """Do something in a process of another user, who keeps new files for himself if he can."""
    child = os.fork()
    if child == 0:
        try:
            if HAS_OTHERS:
                os.setgroups(groups)
                os.setgid(uid)
                os.setuid(uid)
            os.umask(0o077)
            for name in NAMES:
                os.environ.pop(name, None)
            what()
            os._exit(0)  # whatever is open is left as it is
        finally:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def grab() -> None:
    assert open_leases().grab_lease([exclusive("d/t")], AN_HOUR_S) == 1


def be_refused() -> None:
    with open_leases() as leases:
        with pytest.raises(LeaseAlreadyExistsError):
            leases.grab_lease([exclusive("d/t")], AN_HOUR_S)
        assert leases.force_drop_lease("d/t") == 1


def test_users_of_one_machine_keep_each_other_out_where_its_administrator_has_made_a_folder(
    machine: Path,
) -> None:
    """Whatever their masks for new files, and although the first one leaves its files behind; the
    users have no names, as in a container."""
    as_user(ANN, [GROUP], grab)
    left = {file.name: file.stat() for file in machine.iterdir()}
    assert "leases.sqlite-wal" in left
    assert {stat.S_IMODE(each.st_mode) for each in left.values()} == {0o660}
    if HAS_OTHERS:
        assert {(each.st_uid, each.st_gid) for each in left.values()} == {(ANN, GROUP)}
    as_user(BOB, [GROUP], be_refused)
    as_user(ANN, [GROUP], lambda: open_leases().grab_lease([exclusive("d/t")], AN_HOUR_S))


def test_who_may_not_use_the_leases_of_the_machine_is_not_given_others(machine: Path) -> None:
    as_user(ANN, [GROUP], grab)
    own = machine.parent / "own"
    own.mkdir()
    own.chmod(0o777)
    if not HAS_OTHERS:
        machine.chmod(0o2500)

    def be_sent_away() -> None:
        with pytest.raises(InvalidRequestError, match=f"TXN_LEASES folder='{machine}'"):
            open_leases()
        for file in ("leases.sqlite", "folder/other.sqlite"):
            with pytest.raises(StoreError, match=file):
                open_leases(f"sqlite:///{machine}/{file}")
        os.environ[opening.VARIABLE] = f"sqlite:///{own}/leases"
        grab()

    if HAS_OTHERS or os.getuid():
        as_user(EVE, [], be_sent_away)
    machine.chmod(0o2770)


def test_a_folder_of_one_user_is_as_private_as_he_likes(machine: Path) -> None:
    machine.chmod(0o700)
    if HAS_OTHERS:
        os.chown(machine, ANN, ANN)
    as_user(ANN, [GROUP], grab)
    assert stat.S_IMODE((machine / "leases.sqlite").stat().st_mode) == 0o600
