"""A ZooKeeper client with bounded calls: it retries lost connections, but every call ends.

Only this module uses the driver. Idempotent calls are retried. Other calls raise ReplyLost, and the
caller must find out whether they took effect. A session counts as lost as soon as the server may
have ended it, before the server says so. The address and the credentials come from a URI:

zookeeper://user:password@zk1:2181,zk2:2181/base?tls=on&ca=file&certificate=file&key=file

With a user (digest authentication), all created nodes belong to that user alone.
"""

from __future__ import annotations

import logging
import socket
import ssl
from _thread import start_new_thread
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import methodcaller
from random import SystemRandom
from threading import Lock, Thread
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote

from kazoo import exceptions
from kazoo.client import KazooState
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.states import ZnodeStat
from kazoo.security import CREATOR_ALL_ACL

from txn.clock import Clock
from txn.errors import InvalidRequestError, NotApplied, StoreClosedError, StoreError
from txn.host.holds import SafeCondition, SafeEvent
from txn.policy import Backoff
from txn.stores.options import Option, file, hide_login, one_of, parse_address, read_options
from txn.stores.zookeeper import BoundedClient, call_apart
from txn.text import name_failure

LOST_REPLY = (
    *(exceptions.ConnectionLoss, exceptions.OperationTimeoutError),
    *(exceptions.SessionExpiredError, exceptions.SessionMovedError, KazooTimeoutError),
)
LOGGER = logging.getLogger(__name__)
NOT_REACHED = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
CALL_WITHIN_S = 30
CALL_WITHIN_MS = 1000 * CALL_WITHIN_S
TLS_WITHIN_S = 5
MAX_PAUSE_MS = 1_000
RETRYING = Backoff(first_ms=20, longest_ms=MAX_PAUSE_MS)
PAUSES_IN_SESSION = 6
FILES = ("ca", "certificate", "key")
ZOOKEEPER_PORT = 2181
BASE = "/hbase-txn/locks"
OPTIONS: dict[str, Option] = {"tls": one_of("off", "on")} | dict.fromkeys(FILES, file)
LOGGER.addHandler(logging.NullHandler())  # print nothing on stderr by default


class _Answer(AsyncResult):  # type: ignore[misc]
    """The driver's, whose condition no interrupted thread leaves locked for its own threads."""

    def __init__(self, handler: SequentialThreadingHandler) -> None:
        super().__init__(handler, SafeCondition, KazooTimeoutError)
        self._is_open = Lock()
        self._is_open.acquire()

    def set(self, value: Any = None) -> None:
        super().set(value)
        self._note_end()

    def set_exception(self, exception: Exception) -> None:
        super().set_exception(exception)
        self._note_end()

    def _note_end(self) -> None:
        with suppress(RuntimeError):  # it has ended before
            self._is_open.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for the answer without holding its condition."""
        if block and not self.ready() and self._is_open.acquire(timeout=timeout or -1):
            self._is_open.release()
        return super().get(block=False)


class _SafeThreading(SequentialThreadingHandler):  # type: ignore[misc]
    def async_result(self) -> _Answer:
        return _Answer(self)

    def event_object(self) -> SafeEvent:
        return SafeEvent()


class ReplyLost(StoreError):
    """The reply was lost: the call may have taken effect, or may still."""


class NodeMissing(StoreError):
    written = "no"


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The servers, and how to connect to them.

    hosts: `host:port,host:port`. base: the folder of the locks. user, password: for digest
    authentication, if any. certificate: shown to the server, with its key, which may be in a file
    of its own. ca: signs the server's certificate, as the machine's authorities may.
    """

    hosts: str
    base: str = BASE
    user: str = ""
    password: str = field(default="", repr=False)
    tls: str = "off"
    ca: str = ""
    certificate: str = ""
    key: str = ""


def parse_ensemble(parts: SplitResult) -> Ensemble:
    """Parse a URI. Raises InvalidRequestError, whose message never shows the password."""
    login, at, hosts = parts.netloc.rpartition("@")
    shown = hide_login(parts.geturl())
    if not hosts or parts.fragment or "@" in parts.query:
        raise InvalidRequestError("write zookeeper://host:port/base", uri=shown)
    for each in hosts.split(","):
        parse_address(each, ZOOKEEPER_PORT)
    folders = unquote(parts.path).strip("/")
    if any(each in ("", ".", "..") or "\0" in each for each in folders.split("/") if folders):
        raise InvalidRequestError("not a base path", base=folders, uri=shown)
    options = read_options(parts, OPTIONS)
    if files := options.keys() & FILES:
        if options.get("tls") == "off" or (files >= {"key"} and "certificate" not in files):
            message = "files are for tls=on, and a key is for its certificate"
            raise InvalidRequestError(message, options=options, uri=shown)
        options["tls"] = "on"
    if at:
        user, _, password = map(unquote, login.partition(":"))
        if not user or not password or ":" in user or "@" in login:
            message = "write zookeeper://user:password@host:port/base, with %40 for an @"
            raise InvalidRequestError(message, uri=shown)
        options |= {"user": user, "password": password}
    return Ensemble(hosts, f"/{folders}" if folders else BASE, **options)


class NodeData(NamedTuple):
    data: bytes
    created_in: int


class Created(NamedTuple):
    """Created nodes, their transaction, and the children of their folders afterwards."""

    nodes: list[str]
    created_in: int
    children: list[list[str]]


class ZooKeeperClient:
    """One ZooKeeper session at a time. Safe to share between threads, but not across a fork."""

    def __init__(
        self,
        ensemble: Ensemble,
        session_ms: int,
        clock: Clock,
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self.losses = 0
        self._closed = False
        self._clock = clock
        self._rng = SystemRandom()
        self._on_connected = on_connected
        self._silent_since_ms: int | None = None
        # The driver's own pauses double without limit: it would miss a server that is back.
        pause_s = min(MAX_PAUSE_MS, session_ms / PAUSES_IN_SESSION) / 1000
        options = _make_options(ensemble)
        try:
            self._client = BoundedClient(
                ensemble.hosts,
                timeout=session_ms / 1000,
                logger=LOGGER,
                handler=_SafeThreading(),
                connection_retry={"max_tries": -1, "max_delay": pause_s},
                **options,
            )
        except ValueError as error:
            message = "write host:port,host:port"
            raise InvalidRequestError(message, hosts=ensemble.hosts, cause=str(error)) from error
        self._session_ms = session_ms
        self._client.add_listener(self._note_state)
        try:
            call_apart(lambda: self._client.start(timeout=CALL_WITHIN_S))
        except (KazooTimeoutError, exceptions.KazooException) as error:
            self._client.close()
            cause = _find_tls_error(self._client.hosts, ensemble) or str(error)
            message = "cannot connect to ZooKeeper"
            raise NotApplied(message, hosts=ensemble.hosts, cause=cause) from error
        except BaseException:
            start_new_thread(Thread(target=self._stop, daemon=True).start, ())
            raise

    def lost_since(self, losses: int) -> bool:
        """Return True if the session may have ended since `losses` was read: it did, or there was
        no contact for the rest of its time (the driver takes two thirds to notice)."""
        since_ms = self._silent_since_ms
        silent_ms = 0 if since_ms is None else self._clock.monotonic_ms() - since_ms
        return self.losses != losses or silent_ms * 3 >= self._session_ms

    def close(self) -> None:
        self.losses += 1
        self._closed = True
        self._client.remove_listener(self._note_state)
        call_apart(self._stop)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    def list_children(self, folders: Sequence[str]) -> list[list[str]]:
        """Return the names in each folder, in one round trip; a missing folder has none."""
        calls = [methodcaller("get_children_async", folder) for folder in folders]
        return [found or [] for found in self._call_all(calls)]

    def get(self, nodes: Sequence[str]) -> list[NodeData | None]:
        """Return each node, or None if it is missing, in one round trip."""
        found = self._call_all([methodcaller("get_async", at) for at in nodes])
        return [NodeData(each[0], each[1].czxid) if each else None for each in found]

    def read_created(
        self, nodes: Sequence[str], within_ms: int = CALL_WITHIN_MS
    ) -> list[int | None]:
        """Return the transaction that created each node, or None, in one round trip."""
        found = self._call_all([methodcaller("exists_async", at) for at in nodes], within_ms)
        return [stat.czxid if stat else None for stat in found]

    def watch(self, at: str, gone: Callable[[object], None]) -> bool:
        """Return True if a node exists; then call `gone` once it or the session changes."""
        (stat,) = self._call_all([methodcaller("exists_async", at, watch=gone)])
        return stat is not None

    def sync(self, at: str) -> None:
        """Make all earlier writes visible to us, on whichever server they were done."""
        self._call_all([methodcaller("sync_async", at)])

    def create_folders(self, folders: Sequence[str]) -> None:
        """Create missing folders; outer ones must come first."""
        self._call_all([methodcaller("create_async", folder) for folder in folders])

    def tidy(self, folders: Sequence[str]) -> None:
        """Delete empty folders if the server can be reached; inner ones must come first."""
        if not self._closed and self._silent_since_ms is None:
            with suppress(StoreError):  # an empty folder is harmless
                calls = [methodcaller("delete_async", folder) for folder in folders]
                self._call_all(calls, self._session_ms)

    def apply(self, removed: Sequence[str], created: Sequence[tuple[str, bytes]] = ()) -> None:
        """Remove nodes and create others with their data, all or none, once. Raises NodeMissing if
        a folder or a node is missing, and ReplyLost if the reply was lost."""
        self._refuse_if_closed()
        request = self._client.transaction()
        for at in removed:
            request.delete(at)
        for at, data in created:
            request.create(at, data)
        _read_results(request.commit_async(), len(removed) + len(created))

    def enter(self, places: Sequence[str], data: bytes, folders: Sequence[str]) -> Created:
        """Create nodes that end with the session, all or none, once; the server appends a number to
        each name. Then list the folders, in the same round trip: the server executes a session's
        requests in order. Raises as `apply` does."""
        self._refuse_if_closed()
        request = self._client.transaction()
        for at in places:
            request.create(at, data, ephemeral=True, sequence=True)
        # Only this operation reports the number of the transaction; folders hold no data.
        request.set_data(folders[0], b"")
        answer = request.commit_async()
        children = self.list_children(folders)
        *nodes, stat = _read_results(answer, len(places) + 1)
        if not isinstance(stat, ZnodeStat):
            raise ReplyLost("ZooKeeper: the reply is another request's", got=type(stat).__name__)
        return Created(nodes, stat.mzxid, children)

    def _call_all(
        self, calls: Sequence[Callable[[BoundedClient], Any]], within_ms: int = CALL_WITHIN_MS
    ) -> list[Any]:
        """Make idempotent calls in one round trip; repeat them if a reply is lost."""
        due_ms = self._clock.monotonic_ms() + within_ms
        for _ in RETRYING.tries(self._clock, self._rng, due_ms=due_ms):
            self._refuse_if_closed()
            asked = [call(self._client) for call in calls]
            try:
                return [self._wait_for(answer, due_ms) for answer in asked]
            except LOST_REPLY as error:
                failure = error
        raise _make_failure("no answer", failure) from failure

    def _wait_for(self, answer: Any, due_ms: int) -> Any:
        left_ms = max(1, due_ms - self._clock.monotonic_ms())
        try:
            return answer.get(timeout=left_ms / 1000)
        except (exceptions.NoNodeError, exceptions.NodeExistsError, exceptions.NotEmptyError):
            return None
        except LOST_REPLY:
            raise
        except exceptions.KazooException as error:
            raise _make_failure("refused", error) from error
        except Exception as error:  # the driver passes on what was wrong with the bytes
            raise _make_failure("not an answer", error) from error

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosedError("the session with ZooKeeper was closed")

    def _note_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self.losses += 1
        if state == KazooState.CONNECTED:
            self._silent_since_ms = None
            self._client.handler.spawn(self._report_connected)
        else:
            self._silent_since_ms = self._clock.monotonic_ms()

    def _report_connected(self) -> None:
        """Run in a separate thread, so that no reply waits for it."""
        try:
            self._on_connected()
        except StoreError as error:
            LOGGER.warning("not done after a reconnection: %s", name_failure(error))
        except Exception:
            LOGGER.exception("not done after a reconnection")


def _make_options(ensemble: Ensemble) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if ensemble.user:
        options["auth_data"] = [("digest", f"{ensemble.user}:{ensemble.password}")]
        options["default_acl"] = CREATOR_ALL_ACL
    if ensemble.tls == "on":
        _make_tls(ensemble)  # the driver does not report a bad file
        options |= {"use_ssl": True, "check_hostname": True, "ca": ensemble.ca or None}
        options["certfile"] = ensemble.certificate or None
        options["keyfile"] = ensemble.key or ensemble.certificate or None
    return options


def _make_tls(ensemble: Ensemble) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        if ensemble.ca:
            context.load_verify_locations(ensemble.ca)
        if ensemble.certificate:
            context.load_cert_chain(ensemble.certificate, ensemble.key or None)
    except OSError as error:
        files = ensemble.ca, ensemble.certificate, ensemble.key
        raise InvalidRequestError("no certificates", files=files, cause=str(error)) from error
    return context


def _find_tls_error(hosts: Sequence[tuple[str, int]], ensemble: Ensemble) -> str | None:
    """Return why TLS with the first server fails, which the driver does not report."""
    if ensemble.tls == "off":
        return None
    try:
        with socket.create_connection(hosts[0], TLS_WITHIN_S) as plain:
            _make_tls(ensemble).wrap_socket(plain, server_hostname=hosts[0][0]).close()
    except OSError as error:
        return str(error)
    return None


def _read_results(answer: Any, count: int) -> list[Any]:
    """Return the results of a transaction's steps; if it was refused, they are fewer."""
    try:
        results: list[Any] = answer.get(timeout=CALL_WITHIN_S)
    except Exception as error:  # or the driver's time-out, or what was wrong with the bytes
        if isinstance(error, exceptions.KazooException) and not isinstance(error, LOST_REPLY):
            raise _make_failure("refused", error) from error
        raise ReplyLost("ZooKeeper: the reply was lost", cause=_describe(error)) from error
    for result in results:
        if isinstance(result, exceptions.NoNodeError):
            raise NodeMissing("a node is absent")
        if isinstance(result, Exception) and not isinstance(result, NOT_REACHED):
            raise _make_failure("refused", result)
    if len(results) != count:
        raise ReplyLost("ZooKeeper: results are missing", asked=count, got=len(results))
    return results


def _make_failure(message: str, error: Exception) -> StoreError:
    if isinstance(error, exceptions.NoAuthError):
        return NotApplied(
            "ZooKeeper: not for this user: name who made it, zookeeper://user:password@host"
        )
    return StoreError(f"ZooKeeper: {message}", cause=_describe(error))


def _describe(error: Exception) -> str:
    """Return a driver's error as text: for most, the class is all the information."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")
