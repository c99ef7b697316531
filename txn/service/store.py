"""The store of a `txn serve`, `txn://host:port`, over its Transactional service.

It is for recovery from another machine, with the server's token: to read rows and end unfinished
transactions. Transactions themselves go through `txn.service.client`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, urlencode

from txn import errors, model
from txn.clock import Clock
from txn.host.tokens import read_token
from txn.service.messages import DECODERS, IDL, METHODS, decode_error
from txn.stores import gateway
from txn.stores.base import Families, Feature, check_then_read, put_single_checks

DEFAULT_PORT = 9092
TIMEOUT_MS = 60_000  # longer than a commit may take to its decision
UNKNOWN_METHOD = 1  # type of the TApplicationException for an unknown method


def served_store(parts: SplitResult, clock: Clock) -> ServedStore:
    """Return the store of a URI's server, without sending anything yet."""
    return ServedStore(RemoteService(*parse_server(parts), clock))


def parse_server(parts: SplitResult) -> tuple[gateway.Gateway, str | None]:
    """Return the address of a URI's server, and its token. No error message contains the token."""
    options = parse_qsl(parts.query, keep_blank_values=True)
    tokens = [(name, value) for name, value in options if name in ("token", "token_file")]
    if len(tokens) > 1:
        raise errors.InvalidRequestError("give one token, or one token_file", given=len(tokens))
    token = dict(tokens).get("token")
    if "token_file" in dict(tokens):
        token = read_token(Path(dict(tokens)["token_file"]))
    others = urlencode([each for each in options if each not in tokens])
    server = gateway.parse_gateway(parts._replace(query=others), DEFAULT_PORT)
    if "timeout_ms" not in dict(options):
        server = replace(server, timeout_ms=TIMEOUT_MS)
    return server, token


class RemoteService:
    """A server's Transactional service; safe for threads and across fork."""

    def __init__(self, server: gateway.Gateway, token: str | None, clock: Clock) -> None:
        self._token = token
        self._pool = gateway.Pool(server, IDL.Transactional, clock)

    def call(
        self,
        name: str,
        *values: Any,
        repeat: bool = False,
        within_ms: int | None = None,
        **options: Any,
    ) -> Any:
        """Send one request; return its reply or raise the error of its exception. options: fields
        of the request's Options. repeat, within_ms: those of `Pool.run_one`."""
        method = METHODS[name]
        messages = method.encode((*values, IDL.Options(token=self._token, **options)))
        decode = bool if method.result is None else gateway.check_reply(method.result.decode)
        request: gateway.Request[Any] = name, tuple(messages), decode
        try:
            return self._pool.run_one(
                gateway.Connection.call, request, repeat=repeat, within_ms=within_ms
            )
        except gateway.GatewayError as refused:
            raise _decode_refusal(refused, str(self._pool.gateway)) from refused

    def close(self) -> None:
        self._pool.close()


class ServedStore:
    """Tables of a server. A call that is answered with an error may have taken effect."""

    features: frozenset[Feature] = frozenset({"multi_cell_check", "row_mutations", "describe"})

    def __init__(self, service: RemoteService) -> None:
        self._service = service

    def read(self, *groups: Collection[model.Key]) -> dict[model.Key, model.Cell | None]:
        cells: dict[model.Key, model.Cell | None] = {}
        for keys in filter(None, groups):
            cells.update(self._read("storeRead", keys))
        return cells

    def read_versions(
        self, keys: Collection[model.Key], count: int
    ) -> dict[model.Key, list[model.Cell]]:
        model.check_count(count)
        return self._read("storeVersions", keys, count) if keys else {}

    def write(
        self, edits: Sequence[model.Edit], *, durable: bool = True, by_row: bool = False
    ) -> None:
        if edits or durable:
            self._call("storeWrite", edits, durable, by_row, repeat=True)

    def check_and_put(self, checks: Sequence[model.Check], *, durable: bool = True) -> list[bool]:
        """Carry out the checks in one request, which is never repeated."""
        results: list[bool] = self._call("storeCheck", checks, durable) if checks else []
        if len(results) != len(checks):
            raise errors.MaybeApplied("answers are missing", asked=len(checks), got=len(results))
        return results

    put_if_all = put_single_checks
    check_and_read = check_then_read

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: model.Columns = None,
        exclude: model.RowExclusion | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[model.Row]:
        """Yield the rows page by page; the server keeps no state between pages. If the server would
        take too long to find a page of rows that are not excluded, it sends all rows, and this
        client excludes them."""
        model.check_exclusion(columns, exclude)
        following: bytes | None = start
        while following is not None:
            arguments = (table, start, stop, columns, exclude, reverse)
            try:
                rows, following = self._call("storeScan", *arguments, repeat=True)
            except errors.MaybeApplied as error:
                if exclude is None or not isinstance(error.__cause__, TimeoutError):
                    raise
                exclude = None
                continue
            yield from (row for row in rows if exclude is None or not exclude.matches(row))
            if following is not None:
                start, stop = (start, following) if reverse else (following, stop)

    def atomically(self, work: Callable[[], None]) -> None:
        """Run the function; each call is a request of its own."""
        work()

    def list_tables(self) -> list[bytes]:
        return cast(list[bytes], self._call("storeTables", repeat=True))

    def describe(self, table: bytes) -> Families | None:
        return cast(Families | None, self._call("storeDescribe", table, repeat=True))

    def ensure_table(self, table: bytes, families: Families, splits: Sequence[bytes] = ()) -> None:
        """Create what is missing; splits have no effect on one machine."""
        self._call("storeEnsure", table, families, repeat=True)

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        """Return none, as one server reads everything."""
        return []

    def compact(self, table: bytes, purge_before_ms: int) -> None:
        self._call("storeCompact", table, purge_before_ms, repeat=True)

    def close(self) -> None:
        self._service.close()

    def _read(self, name: str, keys: Collection[model.Key], *values: Any) -> dict[model.Key, Any]:
        asked = dict.fromkeys(keys)
        found = self._call(name, [*asked], *values, repeat=True)
        refuse_missing(asked, found)
        return {key: found[key] for key in asked}

    def _call(self, name: str, *values: Any, repeat: bool = False) -> Any:
        try:
            return self._service.call(name, *values, repeat=repeat)
        except (errors.NotApplied, errors.MaybeApplied, errors.StoreClosedError):
            raise
        except errors.StoreError as error:  # the server's store failed, at any point of the work
            raise errors.MaybeApplied(str(error)) from error


def refuse_missing(asked: Collection[model.Key], found: Mapping[model.Key, Any]) -> None:
    """Raise NotApplied if an answer lacks keys, each of which it must name, even if absent."""
    if lacking := [key for key in asked if key not in found]:
        raise errors.NotApplied("keys are missing in the server's answer", keys=lacking[:3])


def _decode_refusal(refused: gateway.GatewayError, server: str) -> errors.TxnError:
    """Return the error for a server's exception. An exception outside the interface is a failure of
    the server at any point of the work, or an unknown method."""
    cause = refused.__cause__
    if type(cause) in DECODERS:
        try:
            return gateway.check_reply(decode_error)(cause)
        except gateway.Garbled as error:
            return errors.MaybeApplied(str(error), server=server, error=type(cause).__name__)
    if getattr(cause, "type", None) == UNKNOWN_METHOD:
        message = "the server is of another version and does not know this request"
        return errors.NotApplied(message, server=server, cause=str(refused))
    return errors.MaybeApplied("the server failed", server=server, cause=str(refused))
