"""Who may use locks in ZooKeeper, and by which way: users with digests, and TLS."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from recovery.opening import open_lock_view
from tests.integration.zookeeper import CERTIFICATE, KEY, ZooKeeper
from txn.errors import InvalidRequestError, NotApplied
from txn.locks import exclusive, open_manager

FILES = {"ca": CERTIFICATE, "certificate": CERTIFICATE, "key": KEY}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    found = ZooKeeper(tmp_path_factory.mktemp("zookeeper"), tls=True)
    try:
        found.start()
        yield found
    finally:
        found.kill()


def use(uri: str) -> None:
    """Take a lock that stays, see it, and give it back."""
    with open_manager(uri) as manager:
        manager.hold([exclusive("d/t")], explicit=True)
    with open_lock_view(uri) as look:
        assert [str(lock.request) for lock in look.list_first(9).locks] == ["S d", "X d/t"]
    with open_manager(uri) as manager:
        assert manager.release("d/t") == 1
        assert manager.locks() == []


def test_what_a_user_makes_is_that_users_alone(server: ZooKeeper) -> None:
    base = f"{server.hosts}/secret/locks"
    ann = f"zookeeper://ann:p%40ss:w%2Frd@{base}"
    use(ann)
    for other in ("", "ann:wrong@", "bob:p%40ss:w%2Frd@"):
        with pytest.raises(NotApplied, match="not for this user"):
            use(f"zookeeper://{other}{base}")
    use(ann)


def test_locks_are_used_by_tls(server: ZooKeeper) -> None:
    for login, base in (("", "plain"), ("ann:secret@", "anns")):
        use(f"zookeeper://{login}localhost:{server.tls_port}/{base}?{urlencode(FILES)}")


def test_a_file_that_is_no_certificate_is_refused_at_once(server: ZooKeeper) -> None:
    with pytest.raises(InvalidRequestError, match="no certificates"):
        open_manager(f"zookeeper://localhost:{server.tls_port}/x?ca={__file__}")
