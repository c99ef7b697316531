"""What the functions of leases are given: what is taken for an object, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path as File
from typing import Any

import pytest

from txn.errors import InvalidRequestError
from txn.leases import (
    InvalidArgumentsError,
    LockRequest,
    Mode,
    exclusive,
    open_leases,
    path,
    shared,
)
from txn.leases.service import LeaseService

Call = Callable[[LeaseService, Any], object]

TABLE = [exclusive("d/t")]
WRONG_TIMES = [None, "60", b"60", True, [60], Decimal(60), timedelta(seconds=60), float("nan")]
WRONG_IDS = [None, "1", 1.0, True, -1, 2**63]
WRONG_OBJECTS = [None, 5, 1.5, True, b"", b"d/t", [None], [5], [b"d/t"], ["d/t", 5]]
NOT_CLAIMED = ["d/t", ["d/t"], path("d/t"), [path("d/t")], [("d/t", "X")]]


@pytest.fixture
def leases(tmp_path: File) -> Iterator[LeaseService]:
    with open_leases(f"sqlite:///{tmp_path}/leases", max_lease_s=9_000) as leases:
        leases.grab_lease([shared("d/t"), shared("d/u")], 3_600)
        yield leases


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda leases, given: leases.grab_lease(TABLE, given), "duration_s"),
        (lambda leases, given: leases.hold(TABLE, given), "duration_s"),
        (lambda leases, given: leases.grab_lease(TABLE, 1, given), "wait_s"),
        (lambda leases, given: leases.hold(TABLE, 1, given), "wait_s"),
        (lambda leases, given: leases.extend_lease(1, duration_s=given or "0"), "duration_s"),
        (lambda leases, given: open_leases(leases.connections.url, max_lease_s=given), "max_lea"),
        (lambda leases, given: open_leases(leases.connections.url, place_s=given), "place_s"),
    ],
)
def test_a_time_that_is_no_number_of_seconds_is_refused_by_name(
    call: Call, name: str, leases: LeaseService
) -> None:
    """It comes from a file of settings, or from a hand that thought of minutes."""
    for given in WRONG_TIMES:
        with pytest.raises(InvalidArgumentsError, match=rf"{name}.*least_s=.*longest_s="):
            call(leases, given)
    assert len(leases.list_lease()) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda leases, given: leases.extend_lease(given),
        lambda leases, given: leases.drop_lease(given),
    ],
)
def test_what_is_no_id_is_refused(call: Call, leases: LeaseService) -> None:
    """A lease itself stands for one of its objects, and not for all."""
    for given in [*WRONG_IDS, leases.list_lease()[0]]:
        with pytest.raises(InvalidArgumentsError, match=r"lease_id=.*limit="):
            call(leases, given)
    assert len(leases.list_lease()) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda leases, given: leases.list_lease(given),
        lambda leases, given: leases.extend_lease(1, given),
        lambda leases, given: leases.drop_lease(1, given),
        lambda leases, given: leases.force_drop_lease(given),
    ],
)
def test_what_is_no_object_is_refused(call: Call, leases: LeaseService) -> None:
    """Above all where none means all: what nobody named must not be dropped by force."""
    for given in [*WRONG_OBJECTS, "", [""]]:
        with pytest.raises(InvalidArgumentsError):
            call(leases, given)
    assert len(leases.list_lease()) == 2


@pytest.mark.parametrize("grab", [LeaseService.grab_lease, LeaseService.hold])
def test_what_says_not_how_to_claim_it_is_refused(
    grab: Callable[..., object], leases: LeaseService
) -> None:
    """The error shows what was given, and says what to write."""
    (lease, _) = leases.list_lease()
    for given in [*WRONG_OBJECTS, *NOT_CLAIMED, lease, [lease]]:
        with pytest.raises(InvalidArgumentsError, match=r"say how to claim it.* object="):
            grab(leases, given, 60)


@pytest.mark.parametrize("user", [5, b"ann", ["ann"], "", "x" * 256])
def test_what_is_no_name_of_a_user_is_refused(user: Any, leases: LeaseService) -> None:
    """A number, as `os.getuid` gives it, would come back as something else from some databases."""
    with pytest.raises(InvalidArgumentsError, match=r"user=.*limit=255"):
        leases.grab_lease([exclusive("d/v")], 60, user=user)


@pytest.mark.parametrize("url", [5, b"sqlite:////x", File("/x"), "", "leases"])
def test_what_is_no_url_is_refused(url: Any) -> None:
    """An empty one is a setting that somebody forgot, and not a wish for leases of one's own."""
    with pytest.raises(InvalidRequestError, match="not the URL of a database"):
        open_leases(url)


@pytest.mark.parametrize(
    "call",
    [
        lambda: path(None),  # type: ignore[arg-type]
        lambda: path(b"d/t"),  # type: ignore[arg-type]
        lambda: shared(None),  # type: ignore[arg-type]
        lambda: exclusive(5),  # type: ignore[arg-type]
        lambda: LockRequest("d/t", Mode.SHARED),  # type: ignore[arg-type]
        lambda: LockRequest(path("d/t"), "X"),  # type: ignore[arg-type]
    ],
)
def test_a_request_for_what_is_no_object_cannot_be_made(call: Callable[[], object]) -> None:
    """It is refused where it is written, not where it is used."""
    with pytest.raises(InvalidRequestError):
        call()


def test_a_lease_stands_for_its_object(leases: LeaseService) -> None:
    """What was listed can be handed on as it is."""
    table, other = leases.list_lease()
    assert leases.extend_lease(table.lease_id, table) == leases.list_lease(table)[0].end_utc
    assert leases.list_lease([table, other]) == leases.list_lease()
    assert leases.drop_lease(other.lease_id, other) == 1
    assert leases.force_drop_lease([table]) == 1
    assert leases.list_lease() == []


def test_what_denies_an_object_is_listed_with_it(leases: LeaseService) -> None:
    """Whoever asks why a partition cannot be had must see who has all of its table. Who only
    reads the table denies nobody its partition; nor is more dropped by force than was named."""
    leases.grab_lease([exclusive("d/w")], 3_600)
    leases.grab_lease([shared("d/v"), exclusive("d/v/p=1/q=1")], 3_600)
    leases.grab_lease([exclusive("d/v/p=2")], 3_600)

    def listed(*objects: str) -> list[str]:
        return [str(each.request) for each in leases.list_lease(objects)]

    assert listed("d/w/p=1/q=2") == ["X d/w"]
    assert listed("d/v/p=1") == ["X d/v/p=1/q=1"]
    assert listed("d/v/p=2/q=1", "d/w/p=1") == ["X d/v/p=2", "X d/w"]
    assert listed("d/w2", "d/w2/p=1", "e/w/p=1") == []
    assert leases.force_drop_lease("d/w/p=1") == 0
    assert listed("d/w") == ["X d/w"]
