"""A ZooKeeper client whose every call ends: again while the connection breaks, but not for ever.

The only module that knows the driver. A call that may be made twice is made again; one that may
not is told to the caller as Broken, who must look whether it was carried out. A session is taken
for lost as soon as the server may have ended it, which is before the server says so.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Any, NamedTuple

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL

from txn.backoff import Backoff
from txn.clock import Clock
from txn.errors import InvalidRequestError, NotApplied, StoreClosedError, StoreError
from txn.locks.zookeeper.ensemble import Credentials
from txn.text import name_failure

LOST_REPLY = (
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    KazooTimeoutError,
)
LOGGER = logging.getLogger(__name__)
NOT_REACHED = (RolledBackError, RuntimeInconsistency)
CALL_WITHIN_S = 30
CALL_WITHIN_MS = 1000 * CALL_WITHIN_S
TLS_WITHIN_S = 5
MAX_PAUSE_MS = 1_000
ASKING = Backoff(first_ms=20, longest_ms=MAX_PAUSE_MS)
PAUSES_IN_SESSION = 6
LOGGER.addHandler(logging.NullHandler())  # nothing on stderr, unless a program asks for it


class Broken(StoreError):
    """The reply was lost: what was asked may have been done, or may be done yet."""


class Gone(StoreError):
    """A node that was needed is not there."""


@dataclass(frozen=True, slots=True)
class Create:
    """A node to make; with `sequence` the server appends a number to its name."""

    at: str
    data: bytes
    ephemeral: bool
    sequence: bool


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """A node to delete."""

    at: str


class About(NamedTuple):
    """What a node holds, and the transaction in which it was made."""

    data: bytes
    made_in: int


class Made(NamedTuple):
    """Nodes that were made, in which transaction, and what was in their folders afterwards."""

    nodes: list[str]
    made_in: int
    children: list[list[str]]


class Keeper:
    """One session at a time with ZooKeeper. Safe to share between threads, not to fork."""

    def __init__(
        self,
        hosts: str,
        session_ms: int,
        clock: Clock,
        connected: Callable[[], None],
        credentials: Credentials,
    ) -> None:
        self.losses = 0
        self._closed = False
        self._clock = clock
        self._rng = SystemRandom()
        self._connected = connected
        self._silent_since_ms: int | None = None
        # The driver's own pauses double without end: it would miss a server that is back.
        pause_s = min(MAX_PAUSE_MS, session_ms / PAUSES_IN_SESSION) / 1000
        options = _make_options(credentials)
        try:
            self._client = KazooClient(
                hosts,
                timeout=session_ms / 1000,
                logger=LOGGER,
                connection_retry={"max_tries": -1, "max_delay": pause_s},
                **options,
            )
        except ValueError as error:
            raise InvalidRequestError(
                "write host:port,host:port", hosts=hosts, cause=str(error)
            ) from error
        self._session_ms = session_ms
        self._client.add_listener(self._note_state)
        try:
            self._client.start(timeout=CALL_WITHIN_S)
        except (KazooTimeoutError, KazooException) as error:
            self._client.close()
            cause = _find_tls_error(self._client.hosts, credentials) or str(error)
            raise NotApplied("cannot connect to ZooKeeper", hosts=hosts, cause=cause) from error

    def lost_since(self, losses: int) -> bool:
        """Whether the session of that count may have ended: it did, or there has been no contact
        for the rest of its time, of which the driver uses two thirds to notice a silence."""
        since_ms = self._silent_since_ms
        silent_ms = 0 if since_ms is None else self._clock.monotonic_ms() - since_ms
        return self.losses != losses or silent_ms * 3 >= self._session_ms

    def close(self) -> None:
        """End the session, and all that is ephemeral with it."""
        self.losses += 1
        self._closed = True
        self._client.remove_listener(self._note_state)
        self._client.stop()
        self._client.close()

    # -------------------------------------------------------------------------- single calls

    def children(self, folder: str) -> list[str]:
        """Return the names in a folder; an absent one has none."""
        (found,) = self.all_children([folder])
        return found

    def all_children(self, folders: Sequence[str]) -> list[list[str]]:
        """Return the names in each folder, asked in one go."""
        asked = [_make_call("get_children_async", folder) for folder in folders]
        return [found or [] for found in self._answers(asked)]

    def about(self, nodes: Sequence[str]) -> list[About | None]:
        """Return what is known of each node, asked in one go; None: it is absent."""
        found = self._answers([_make_call("get_async", at) for at in nodes])
        return [About(each[0], each[1].czxid) if each else None for each in found]

    def there(self, nodes: Sequence[str], within_ms: int = CALL_WITHIN_MS) -> list[int | None]:
        """Return the transaction in which each node was made, or None, asked in one go."""
        found = self._answers([_make_call("exists_async", at) for at in nodes], within_ms)
        return [stat.czxid if stat else None for stat in found]

    def watch(self, at: str, gone: Callable[[object], None]) -> bool:
        """Whether a node is there; then call when something happens to it, or to the session."""
        (stat,) = self._answers([lambda client: client.exists_async(at, watch=gone)])
        return stat is not None

    def sync(self, at: str) -> None:
        """See all that was done before now, by any server of the ensemble."""
        self._answers([_make_call("sync_async", at)])

    def write(self, at: str, data: bytes) -> None:
        """Let a node hold this, if it is there."""
        self._answers([lambda client: client.set_async(at, data)])

    def make_folders(self, folders: Sequence[str]) -> None:
        """Make each folder that is absent; the outer ones come first."""
        self._answers([_make_call("create_async", folder) for folder in folders])

    def tidy(self, folders: Sequence[str]) -> None:
        """Delete each folder that is empty, if that can be done now; the inner ones come first."""
        if self._closed or self._silent_since_ms is not None:
            return
        asked = [self._client.delete_async(folder) for folder in folders]
        for answer in asked:
            try:
                answer.get(timeout=CALL_WITHIN_S)
            except (NoNodeError, NotEmptyError):
                continue
            except (KazooException, KazooTimeoutError):
                return  # an empty folder does no harm

    # ------------------------------------------------------------------- all or nothing, once

    def change(self, steps: Sequence[Create | RemoveNode]) -> None:
        """Take all steps or none, once.

        Raises Gone where a folder or a node is absent, and Broken where the reply was lost.
        """
        self._refuse_if_closed()
        _results(self._request(steps).commit_async())

    def make(self, steps: Sequence[Create], folders: Sequence[str]) -> Made:
        """Take all steps or none, once, and look into the folders right behind them, in one go: a
        session's requests are carried out in their order. Raises as `change` does."""
        self._refuse_if_closed()
        request = self._request(steps)
        # Of all that a transaction can do only this tells its number; folders hold no data.
        request.set_data(folders[0], b"")
        answer = request.commit_async()
        children = self.all_children(folders)
        *nodes, stat = _results(answer)
        return Made(nodes, stat.mzxid, children)

    def _request(self, steps: Sequence[Create | RemoveNode]) -> TransactionRequest:
        request = self._client.transaction()
        for step in steps:
            if isinstance(step, Create):
                request.create(step.at, step.data, ephemeral=step.ephemeral, sequence=step.sequence)
            else:
                request.delete(step.at)
        return request

    # ------------------------------------------------------------------------------- details

    def _answers(
        self, calls: Sequence[Callable[[KazooClient], Any]], within_ms: int = CALL_WITHIN_MS
    ) -> list[Any]:
        """Make calls that may be made twice, in one go, and again those whose replies are lost."""
        answers: dict[int, Any] = {}
        due_ms = self._clock.monotonic_ms() + within_ms
        for _ in ASKING.tries(self._clock, self._rng, due_ms=due_ms):
            self._refuse_if_closed()
            left = [i for i in range(len(calls)) if i not in answers]
            asked = [(i, calls[i](self._client)) for i in left]
            broken: list[Exception] = []
            for i, answer in asked:
                try:
                    answers[i] = self._one(answer, due_ms)
                except LOST_REPLY as error:
                    broken.append(error)
            if not broken:
                return [answers[i] for i in range(len(calls))]
        raise _failure("no answer", broken[-1]) from broken[-1]

    def _one(self, answer: Any, due_ms: int) -> Any:
        left_ms = max(1, due_ms - self._clock.monotonic_ms())
        try:
            return answer.get(timeout=left_ms / 1000)
        except (NoNodeError, NodeExistsError):
            return None
        except LOST_REPLY:
            raise
        except KazooException as error:
            raise _failure("refused", error) from error

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosedError("the session with ZooKeeper was closed")

    def _note_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self.losses += 1
        if state == KazooState.CONNECTED:
            self._silent_since_ms = None
            self._client.handler.spawn(self._tell_connected)
        else:
            self._silent_since_ms = self._clock.monotonic_ms()

    def _tell_connected(self) -> None:
        """Let the owner do what it has put off, in a thread that nobody waits for."""
        try:
            self._connected()
        except StoreError as error:
            LOGGER.warning("not done after a reconnection: %s", name_failure(error))
        except Exception:
            LOGGER.exception("not done after a reconnection")


def _make_options(credentials: Credentials) -> dict[str, Any]:
    """Return what the driver is told of how we are let in."""
    options: dict[str, Any] = {}
    if credentials.user:
        options["auth_data"] = [("digest", f"{credentials.user}:{credentials.password}")]
        options["default_acl"] = CREATOR_ALL_ACL
    if credentials.tls == "on":
        _make_tls(credentials)  # the driver would not say that a file is none of its kind
        options |= {"use_ssl": True, "check_hostname": True, "ca": credentials.ca or None}
        options["certfile"] = credentials.certificate or None
        options["keyfile"] = credentials.key or credentials.certificate or None
    return options


def _make_tls(credentials: Credentials) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        if credentials.ca:
            context.load_verify_locations(credentials.ca)
        if credentials.certificate:
            context.load_cert_chain(credentials.certificate, credentials.key or None)
    except OSError as error:
        files = credentials.ca, credentials.certificate, credentials.key
        raise InvalidRequestError("no certificates", files=files, cause=str(error)) from error
    return context


def _find_tls_error(hosts: Sequence[tuple[str, int]], credentials: Credentials) -> str | None:
    """Return why the first server is no partner for TLS, which the driver does not tell."""
    if credentials.tls == "off":
        return None
    try:
        with socket.create_connection(hosts[0], TLS_WITHIN_S) as plain:
            _make_tls(credentials).wrap_socket(plain, server_hostname=hosts[0][0]).close()
    except OSError as error:
        return str(error)
    return None


def _make_call(name: str, at: str) -> Callable[[KazooClient], Any]:
    """Return a call of the driver's, by its name."""
    return lambda client: getattr(client, name)(at)


def _results(answer: Any) -> list[Any]:
    """Return what came of each step of a transaction."""
    try:
        results: list[Any] = answer.get(timeout=CALL_WITHIN_S)
    except LOST_REPLY as error:
        raise Broken("ZooKeeper: the reply was lost", cause=_name(error)) from error
    except KazooException as error:
        raise _failure("refused", error) from error
    for result in results:
        if isinstance(result, NoNodeError):
            raise Gone("a node is absent")
        if isinstance(result, Exception) and not isinstance(result, NOT_REACHED):
            raise _failure("refused", result)
    return results


def _failure(message: str, error: Exception) -> StoreError:
    if isinstance(error, NoAuthError):
        return NotApplied(
            "ZooKeeper: not for this user: name who made it, zookeeper://user:password@host"
        )
    return StoreError(f"ZooKeeper: {message}", cause=_name(error))


def _name(error: Exception) -> str:
    """Return an error of the driver's as text: most of them say nothing but their class."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")
