"""The store of a `txn serve`, `txn://host:port`, over its Transactional service.

It is for recovery, which looks at rows and ends what was begun, from another machine and with the
server's token. Transactions are the server's own to carry out: see `txn.service.client`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode

from txn.clock import Clock
from txn.errors import (
    InvalidRequestError,
    MaybeApplied,
    NotApplied,
    StoreClosedError,
    StoreError,
    TxnError,
)
from txn.host.tokens import read_token
from txn.model import (
    Cell,
    Check,
    Columns,
    Edit,
    Family,
    Key,
    Row,
    Unless,
    check_count,
    check_unless,
)
from txn.service.messages import FIELDS, IDL, UNKNOWN_KIND, pack_key, unpack_cells, unpack_error
from txn.service.store_messages import (
    pack_check,
    pack_columns,
    pack_edit,
    pack_families,
    pack_unless,
    unpack_families,
    unpack_page,
    unpack_versions,
)
from txn.stores.base import Feature
from txn.stores.gateway import Gateway, GatewayError, Service, parse_gateway
from txn.stores.hbase.pool import Job, Pool

DEFAULT_PORT = 9092
TIMEOUT_MS = 60_000  # more than a commit may take until it is decided
UNKNOWN_METHOD = 1  # what a TApplicationException says of a server that is another one
DECLARED = (*FIELDS, IDL.Invalid, IDL.Unauthorized)
CALLS = IDL.Transactional


def served_store(parts: SplitResult, clock: Clock) -> ServedStore:
    """Return the store of the server of a URI. Nothing is sent yet."""
    return ServedStore(RemoteService(*parse_server(parts), clock))


def parse_server(parts: SplitResult) -> tuple[Gateway, str | None]:
    """Return where the server of a URI is, and the token it wants. The token is in no message."""
    options = parse_qsl(parts.query, keep_blank_values=True)
    tokens = [(name, value) for name, value in options if name in ("token", "token_file")]
    if len(tokens) > 1:
        raise InvalidRequestError("give one token, or one token_file", given=len(tokens))
    token = dict(tokens).get("token")
    if "token_file" in dict(tokens):
        token = read_token(Path(dict(tokens)["token_file"]))
    others = urlencode([each for each in options if each not in tokens])
    gateway = parse_gateway(parts._replace(query=others), DEFAULT_PORT)
    if "timeout_ms" not in dict(options):
        gateway = replace(gateway, timeout_ms=TIMEOUT_MS)
    return gateway, token


class RemoteService:
    """A server's Transactional service. Safe to share between threads, and across fork."""

    def __init__(self, gateway: Gateway, token: str | None, clock: Clock) -> None:
        self._token = token
        self._pool = Pool(gateway, Service(IDL.Transactional), clock)

    def options(self, **given: Any) -> Any:
        """Return what goes with every request, the token with it."""
        return IDL.Options(token=self._token, **given)

    def ask(
        self, method: str, arguments: Any, *, repeat: bool = False, within_ms: int | None = None
    ) -> Any:
        """Send one request and return its answer; raise what its exception stands for. repeat and
        within_ms are those of `Pool.run_one`."""

        def job() -> Job[Any]:
            return (yield method, arguments)

        try:
            answer = self._pool.run_one(job, repeat=repeat, within_ms=within_ms)
        except GatewayError as refused:
            raise _translate_error(refused, str(self._pool.gateway)) from refused
        if answer is None and 0 in getattr(IDL.Transactional, f"{method}_result").thrift_spec:
            raise MaybeApplied(UNKNOWN_KIND, server=str(self._pool.gateway))
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


class ServedStore:
    """Tables of a server. What it answers with an error may have been done."""

    features: frozenset[Feature] = frozenset({"multi_cell_check", "row_mutations", "describe"})

    def __init__(self, service: RemoteService) -> None:
        self._service = service

    def read(
        self, *groups: Collection[Key], beside: Callable[[], None] | None = None
    ) -> dict[Key, Cell | None]:
        """Read each group in one request, after what is to be done beside."""
        if beside is not None:
            beside()
        return {key: cell for keys in groups for key, cell in self._read_group(keys).items()}

    def _read_group(self, keys: Collection[Key]) -> dict[Key, Cell | None]:
        if not keys:
            return {}
        packed = _pack_keys(keys)
        found = unpack_cells(self._ask("storeRead", CALLS.storeRead_args, packed, repeat=True))
        return {key: found[key] for key in keys}

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        """Read them in one request."""
        check_count(count)
        if not keys:
            return {}
        arguments = (_pack_keys(keys), count)
        answer = self._ask("storeVersions", CALLS.storeVersions_args, *arguments, repeat=True)
        found = unpack_versions(answer)
        return {key: found[key] for key in keys}

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        """Write all of it in one request."""
        if edits:
            packed = [pack_edit(edit) for edit in edits if _require_table(edit.key)]
            self._ask(
                "storeWrite", CALLS.storeWrite_args, packed, durable, repeat=True, byRow=by_row
            )

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        """Carry out the checks in one request, which is never repeated."""
        if not checks:
            return []
        packed = [pack_check(check) for check in checks if _require_table(check.key)]
        answers: list[bool] = self._ask("storeCheck", CALLS.storeCheck_args, packed, durable)
        return answers

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Columns = None,
        unless: Unless | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """Yield the rows, a page at a time; between the pages the server holds nothing for us. An
        older server sends the rows that are left out as well, and so does one that would take too
        long to find a page of others."""
        check_unless(columns, unless)
        wanted, left_out = pack_columns(columns), pack_unless(unless)
        following: bytes | None = b""
        while following is not None:
            named = {"reverse": True, **left_out} if reverse else left_out
            arguments = (table, start, stop, wanted)
            try:
                rows, following = unpack_page(
                    self._ask("storeScan", CALLS.storeScan_args, *arguments, repeat=True, **named)
                )
            except MaybeApplied as error:
                if not left_out or not isinstance(error.__cause__, TimeoutError):
                    raise
                left_out = {}
                continue
            yield from (row for row in rows if unless is None or not unless.leaves_out(row))
            if following is not None:
                start, stop = (start, following) if reverse else (following, stop)

    def together(self, work: Callable[[], None]) -> None:
        """Run the function, one request after the other."""
        work()

    def list_tables(self) -> list[bytes]:
        """Return the names of the server's tables."""
        names: list[bytes] = self._ask("storeTables", CALLS.storeTables_args, repeat=True)
        return names

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        """Return the settings of the server's table."""
        found = self._ask("storeDescribe", CALLS.storeDescribe_args, table, repeat=True).families
        return None if found is None else unpack_families(found)

    def ensure_table(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
    ) -> None:
        """Create what is missing; splits mean nothing on one machine."""
        packed = pack_families(families)
        self._ask("storeEnsure", CALLS.storeEnsure_args, table, packed, repeat=True)

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        """Return none: one server reads it all."""
        return []

    def compact(self, table: bytes, purge_before_ms: int) -> None:
        """Let the server drop the delete markers."""
        arguments = (table, purge_before_ms)
        self._ask("storeCompact", CALLS.storeCompact_args, *arguments, repeat=True)

    def close(self) -> None:
        """Close the connections."""
        self._service.close()

    def _ask(
        self, method: str, kind: Any, *arguments: Any, repeat: bool = False, **named: Any
    ) -> Any:
        try:
            request = kind(*arguments, options=self._service.options(), **named)
            return self._service.ask(method, request, repeat=repeat)
        except (NotApplied, MaybeApplied, StoreClosedError):
            raise
        except StoreError as error:  # the server's store failed, at any point of the work
            raise MaybeApplied(str(error)) from error


def _pack_keys(keys: Collection[Key]) -> list[Any]:
    return [pack_key(_require_table(key)) for key in dict.fromkeys(keys)]


def _require_table(key: Key) -> Key:
    if not key.table:
        raise InvalidRequestError("the key names no table", key=key)
    return key


def _translate_error(refused: GatewayError, server: str) -> TxnError:
    """Return the error that a server's exception stands for. What is no exception of the interface
    is the server's own failure, at any point of the work, or a request that it does not know."""
    cause = refused.__cause__
    if type(cause) in DECLARED:
        return unpack_error(cause)
    if getattr(cause, "type", None) == UNKNOWN_METHOD:
        message = "the server is of another version and does not know this request"
        return NotApplied(message, server=server, cause=str(refused))
    return MaybeApplied("the server failed", server=server, cause=str(refused))


def is_unsupported(error: NotApplied) -> bool:
    """Whether the server, of an older version, does not know the request."""
    refused = error.__cause__
    return refused is not None and getattr(refused.__cause__, "type", None) == UNKNOWN_METHOD
