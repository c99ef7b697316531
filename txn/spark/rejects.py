"""Rows that were not written, because an assertion was false or others were in the way: the options
`on_reject` and `rejects`.

In a table a reject takes the token of its row: a row is either written or rejected, whatever other
attempts of its task come to. In a folder each attempt of a task has a file of its own, under a
hidden name until the write is done; then those of the attempts that count get their names.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from txn.client.engine import Engine
from txn.errors import AbortedError, AssertionFailedError, InvalidRequestError, TxnError
from txn.model import Key, Mutation
from txn.request import Committed, Request
from txn.spark.committing import Refused, make_error
from txn.spark.drafting import Given
from txn.spark.options import SourceOptions
from txn.text import escape, reason_text

REJECTING = ("on_reject", "rejects", "rejects_family")
"""The options of rejects."""

TABLE = "table:"


@dataclass(frozen=True)
class RejectPlace:
    """What is done about rejects. They fail the task where they are not even counted; a row that
    others were in the way of is rejected only where it is kept."""

    is_counted: bool = False
    table: bytes | None = None
    family: bytes = b"r"
    folder: Path | None = None

    @property
    def is_kept(self) -> bool:
        """Whether rejects are written somewhere."""
        return self.table is not None or self.folder is not None

    def list_samples(self) -> Request:
        """Return a request such as those of rejects, for a look at the table and its family."""
        keys = [Key(b"-", self.family, b"reason", self.table)] if self.table else []
        return Request(tuple(Mutation(key, b"-") for key in keys))

    def open_rejects(self, engine: Engine, job: str, name: str) -> Rejects:
        """Return the rejects of an attempt of a task. name: of the task."""
        return Rejects(self, engine, job, name)


class Rejects:
    """What an attempt of a task rejects."""

    def __init__(self, place: RejectPlace, engine: Engine, job: str, name: str) -> None:
        self._place = place
        self._engine = engine
        self._job = job
        self._name = f".{job}-{name}-{uuid.uuid4().hex}.rejects"
        self._has_file = False

    def refuse(self, refused: Refused[Given]) -> int:
        """Keep what did not commit of a batch, or raise PartitionError; return how many requests
        had been decided by another attempt meanwhile, and so are repeated."""
        for given, _, why in refused:
            if not self._is_reject(why):
                raise make_error(given, why) from why
        if self._place.table is not None:
            return self._put(refused)
        if self._place.folder is not None:
            self._append(self._place.folder, refused)
        return 0

    @property
    def file(self) -> str | None:
        """The name of the attempt's file, where it has one."""
        return self._name if self._has_file else None

    def _is_reject(self, why: TxnError) -> bool:
        kind = AbortedError if self._place.is_kept else AssertionFailedError
        return self._place.is_counted and isinstance(why, kind)

    def _put(self, refused: Refused[Given]) -> int:
        requests = [self._make_record(*each) for each in refused]
        results = self._engine.commit_many(requests)
        for (given, _, _), result in zip(refused, results, strict=True):
            if not isinstance(result, Committed):
                raise make_error(given, result) from result
        return sum(isinstance(result, Committed) and result.repeated for result in results)

    def _make_record(self, given: Given, request: Request, why: TxnError) -> Request:
        """The record of a reject, which is committed in the place of the row, as it were."""
        document = _make_document(self._job, given, why)
        token = request.once or json.dumps(document).encode()
        digest = blake2b(token, digest_size=8).hexdigest().encode()
        row = b"%s/%s" % (given.rows[0].row, digest)
        return Request(
            tuple(
                Mutation(Key(row, self._place.family, name, self._place.table), text)
                for name, text in document.items()
            ),
            (),
            request.once,
            {},
            request.once_retention_ms,
        )

    def _append(self, folder: Path, refused: Refused[Given]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._has_file = True
        with open(folder / self._name, "a", encoding="utf-8") as file:
            for given, _, why in refused:
                document = _make_document(self._job, given, why)
                document["row"] = json.loads(document["row"])
                file.write(json.dumps(document, ensure_ascii=False) + "\n")


def parse_rejects(options: SourceOptions) -> RejectPlace:
    """Return what the options want done about rejects."""
    where = options.text("rejects")
    usual = "count" if where else "fail"
    is_counted = options.choice("on_reject", ("fail", "count"), usual) == "count"
    if where and not is_counted:
        raise InvalidRequestError(
            "options exclude each other", options=["on_reject=fail", "rejects"]
        )
    if not where:
        return RejectPlace(is_counted)
    if where.startswith(TABLE):
        table = where.removeprefix(TABLE).encode()
        return RejectPlace(True, table, (options.text("rejects_family") or "r").encode())
    return RejectPlace(True, folder=Path(where.removeprefix("file://")).absolute())


def name_files(folder: Path, job: str, files: Sequence[str | None]) -> None:
    """Give the files of the attempts that count their names, `NAME-0.jsonl` and so on, and take
    away those of the others, and what an earlier run of the same job has left."""
    wanted = {f"{job}-{place}.jsonl": file for place, file in enumerate(files) if file is not None}
    for name, file in wanted.items():
        try:
            (folder / file).replace(folder / name)
        except FileNotFoundError as error:
            raise InvalidRequestError(
                "rejects need a folder that tasks and driver share", file=folder / file
            ) from error
    for left in _list_files(folder, job):
        if left.name not in wanted:
            left.unlink(missing_ok=True)


def drop_files(folder: Path, job: str) -> None:
    """Take away the hidden files of a job that failed."""
    for left in _list_files(folder, job):
        if left.name.startswith("."):
            left.unlink(missing_ok=True)


def _list_files(folder: Path, job: str) -> Iterable[Path]:
    if not folder.is_dir():
        return []
    return [*folder.glob(f".{job}-*.rejects"), *folder.glob(f"{job}-*.jsonl")]


def _make_document(job: str, given: Given, why: TxnError) -> dict[str, Any]:
    reason = reason_text(why) if isinstance(why, AbortedError) else str(why)
    return {
        "reason": reason,
        "key": ",".join(dict.fromkeys(escape(row.row) for row in given.rows)),
        "row": given.text(),
        "job": job,
    }
