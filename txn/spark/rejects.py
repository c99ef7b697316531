"""The options `onReject` and `rejects`: rows that failed an assertion or met a conflict.

In a table a reject takes the token of its row. So a row is either written or rejected, whatever the
other attempts of its task do. In a folder each attempt of a task has its own file, under a hidden
name until the write ends; then the files of the successful attempts get their final names.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from txn.client.engine import Engine
from txn.errors import AbortedError, AssertionFailedError, InvalidRequestError, TxnError
from txn.model import Key, Mutation
from txn.request import Committed, Request
from txn.spark.options import SourceOptions
from txn.spark.partitions import Refused, make_error
from txn.spark.requests import SourceRows
from txn.text import escape, reason_text

REJECTS = ("onReject", "rejects", "rejectsFamily")

TABLE = "table:"


@dataclass(frozen=True)
class Rejects:
    """What is done about rejects. They fail the task unless they are at least counted. A conflict
    rejects a row only if rejects are kept."""

    is_counted: bool = False
    table: bytes | None = None
    family: bytes = b"r"
    folder: Path | None = None

    def sample_request(self) -> Request:
        """Return a request like those of rejects, to check the table and its family."""
        return Request((Mutation(Key(b"-", self.family, b"reason", self.table), b"-"),))

    def open(self, engine: Engine, job: str, partition: int) -> RejectKeeper:
        return RejectKeeper(self, engine, job, partition)

    def name_files(self, job: str, files: Sequence[str | None]) -> None:
        """Rename the files of successful attempts to `NAME-0.jsonl` and so on. Delete the files of
        other attempts, and those of an earlier run of the same job."""
        if self.folder is None:
            return
        named = {f"{job}-{place}.jsonl": file for place, file in enumerate(files) if file}
        for name, file in named.items():
            try:
                (self.folder / file).replace(self.folder / name)
            except FileNotFoundError as error:
                raise InvalidRequestError(
                    "rejects need a folder that tasks and driver share", file=self.folder / file
                ) from error
        for left in self.folder.glob(f"{job}-*.jsonl"):
            if left.name not in named:
                left.unlink(missing_ok=True)
        self.drop_files(job)

    def drop_files(self, job: str) -> None:
        for left in self.folder.glob(f".{job}-*.rejects") if self.folder else ():
            left.unlink(missing_ok=True)


class RejectKeeper:
    """Keep the rejects of an attempt of a task. file: the name of its file, if it has one."""

    def __init__(self, rejects: Rejects, engine: Engine, job: str, partition: int) -> None:
        self.file: str | None = None
        self._rejects = rejects
        self._engine = engine
        self._job = job
        self._name = f".{job}-{partition}-{uuid.uuid4().hex}.rejects"

    def refuse(self, refused: Refused[SourceRows]) -> int:
        """Keep the refused requests of a batch, or raise PartitionError. Return how many of them
        another attempt had already decided, and so are repeated."""
        is_kept = self._rejects.table is not None or self._rejects.folder is not None
        kind = AbortedError if is_kept else AssertionFailedError
        for rows, _, why in refused:
            if not (self._rejects.is_counted and isinstance(why, kind)):
                raise make_error(rows, why) from why
        if self._rejects.table is not None:
            return self._put(refused)
        if self._rejects.folder is not None:
            self._append(self._rejects.folder, refused)
        return 0

    def _put(self, refused: Refused[SourceRows]) -> int:
        results = self._engine.commit_many([self._make_record(*each) for each in refused])
        repeated = 0
        for (rows, _, _), result in zip(refused, results, strict=True):
            if not isinstance(result, Committed):
                raise make_error(rows, result) from result
            repeated += result.repeated
        return repeated

    def _make_record(self, rows: SourceRows, request: Request, why: TxnError) -> Request:
        document = self._describe(rows, why)
        token = request.once or json.dumps(document).encode()
        digest = blake2b(token, digest_size=8).hexdigest().encode()
        row = b"%s/%s" % (rows.rows[0].row, digest)
        keys = [Key(row, self._rejects.family, name, self._rejects.table) for name in document]
        mutations = tuple(map(Mutation, keys, document.values()))
        return Request(mutations, (), request.once, {}, request.once_retention_ms)

    def _append(self, folder: Path, refused: Refused[SourceRows]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = self._name
        with open(folder / self._name, "a", encoding="utf-8") as file:
            for rows, _, why in refused:
                document = self._describe(rows, why)
                document["row"] = json.loads(document["row"])
                file.write(json.dumps(document, ensure_ascii=False) + "\n")

    def _describe(self, rows: SourceRows, why: TxnError) -> dict[str, Any]:
        return {
            "reason": reason_text(why) if isinstance(why, AbortedError) else str(why),
            "key": ",".join(dict.fromkeys(escape(row.row) for row in rows.rows)),
            "row": rows.text(),
            "job": self._job,
        }


def parse_rejects(options: SourceOptions) -> Rejects:
    where = options.text("rejects")
    usual = "count" if where else "fail"
    is_counted = options.choice("onReject", ("fail", "count"), usual) == "count"
    if where and not is_counted:
        raise InvalidRequestError(
            "options exclude each other", options=["onReject=fail", "rejects"]
        )
    if not where:
        return Rejects(is_counted)
    if where.startswith(TABLE):
        table = where.removeprefix(TABLE).encode()
        return Rejects(True, table, (options.text("rejectsFamily") or "r").encode())
    return Rejects(True, folder=Path(where.removeprefix("file://")).absolute())
