"""Leases that extend themselves, what holders of lost ones learn, and leases of a machine's users.

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
from txn.clock import ManualClock, poll
from txn.errors import InvalidRequestError, StoreError
from txn.leases import (
    LeaseAlreadyExistsError,
    exclusive,
    open_leases,
    opening,
    path,
    shared,
)
from txn.leases.service import LeaseService
from txn.locks import LockLost

TABLE = [exclusive("d/t")]
WITHIN_MS = 60_000
AN_HOUR_S = 3600


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """Of one kind: test_leases.py of the contracts shows that both are equal."""
    return f"sqlite:///{tmp_path}/leases"


@pytest.fixture
def leases(database_url: str) -> Iterator[LeaseService]:
    with open_leases(database_url) as leases:
        yield leases


def test_it_ends_later_and_later_while_it_is_held(leases: LeaseService) -> None:
    with leases.hold(TABLE, 12) as held:
        (first,) = leases.list_lease()
        assert poll(lambda: leases.list_lease()[0].end_utc > first.end_utc, WITHIN_MS)
        held.check()
        (later,) = leases.list_lease()
        assert (later.lease_id, later.start_utc) == (held.lease_id, first.start_utc)
    assert leases.list_lease() == []
    with pytest.raises(LockLost):
        held.check()
    held.release()


def test_it_has_what_whoever_runs_jobs_under_locks_asks_for(leases: LeaseService) -> None:
    objects = [exclusive("d/t/p=1"), shared("d/u")]
    with leases.hold(objects, AN_HOUR_S, user="nightly") as held:
        assert [str(each) for each in held.requests] == ["S d", "S d/t", "X d/t/p=1", "S d/u"]
        assert held.tokens == {path("d/t/p=1"): held.lease_id, path("d/u"): held.lease_id}
        assert {lease.user for lease in leases.list_lease()} == {"nightly"}
        held.check()
    with leases.hold(objects, AN_HOUR_S) as later:
        assert later.tokens[path("d/u")] > held.tokens[path("d/u")]


def test_a_holder_whose_lease_was_dropped_by_force_is_told(leases: LeaseService) -> None:
    with leases.hold(TABLE, 1) as held:
        leases.force_drop_lease(["d/t"])
        with pytest.raises(LockLost, match="X d/t"):
            held.check()
        assert poll(lambda: held.lost, WITHIN_MS)
    with leases.hold(TABLE, 1) as held:
        leases.force_drop_lease([])
        assert poll(lambda: held.lost, WITHIN_MS)
        with pytest.raises(LockLost):
            held.check()


BOTH = [exclusive("d/t"), shared("d/u")]


def test_a_holder_that_does_not_ask_learns_that_a_part_was_dropped_and_taken(
    leases: LeaseService, database_url: str
) -> None:
    still = ManualClock()
    with open_leases(database_url, clock=still) as holder, holder.hold(BOTH, 3) as held:
        leases.force_drop_lease("d/t")
        leases.grab_lease([exclusive("d/t")], AN_HOUR_S)
        assert poll(lambda: held.lost, WITHIN_MS)
        assert poll(lambda: leases.list_lease("d/u") == [], WITHIN_MS)
        held.release()
        assert [lease.user for lease in leases.list_lease("d/t")]  # another's is not dropped


def test_a_lease_that_was_dropped_in_part_or_is_anothers_is_lost(
    leases: LeaseService,
) -> None:
    with leases.hold(BOTH, AN_HOUR_S) as held:
        assert leases.drop_lease(held.lease_id, ["d/u"]) == 1  # nobody can tell who dropped it
        with pytest.raises(LockLost):
            held.check()
    with leases.hold(TABLE, AN_HOUR_S) as held:
        leases.force_drop_lease([])
        with leases.hold(TABLE, AN_HOUR_S) as other:
            with pytest.raises(LockLost):
                held.check()
            other.check()
            held.release()
            other.check()


def test_who_cannot_ask_takes_its_lease_for_lost_when_its_time_is_over(
    database_url: str,
) -> None:
    """By its own clock, which counts from before the lease was asked for."""
    clock = ManualClock()
    with open_leases(database_url, clock=clock) as leases, leases.hold(TABLE, AN_HOUR_S) as held:
        clock.set_wall_ms(clock.wall_ms() + AN_HOUR_S * 1000 * 24)  # as an operator may set it
        clock.advance(AN_HOUR_S * 980)
        held.check()
        clock.advance(AN_HOUR_S * 20)
        assert held.lost
        with pytest.raises(LockLost):
            held.check()


GROUP = 61_000
ANN, BOB, EVE = 61_001, 61_002, 61_003
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
    """Whatever their masks for new files, and although the first one leaves its files behind."""
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
