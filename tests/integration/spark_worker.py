"""A Spark application in a process of its own: `python -m tests.integration.spark_worker ..`.

Each line of its input is a Question, each line of its output the answer to it. Application is the
other end of both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.integration.gate import Gate
from txn.errors import TxnError
from txn.locks import LockManager, Waiting, open_manager
from txn.locks.spark import locked_sql, session_requests
from txn.spark.session import local_session

ROOT = Path(__file__).parents[2]
ENDS_WITHIN_S = 60
LEASE_MS = 60_000
PATIENT = Waiting(retries=10_000, pause_ms=50, deadline_ms=120_000)


@dataclass(frozen=True, slots=True)
class Question:
    """A statement, and how to run it.

    locks: the manager whose locks to take for it. patient: whether to wait for them. only_explain:
    what it would lock is told instead. gate: the folder of the gate that it may call.
    """

    sql: str
    locks: str | None = None
    patient: bool = True
    only_explain: bool = False
    gate: str | None = None


class Failed(Exception):
    """The statement failed in the application."""


class Application:
    """The process, from outside. One question at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, sql: str, **details: Any) -> list[Any]:
        """Return the first column of the rows, or what is locked; raise Failed with the error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(Question(sql, **details))) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise Failed(answer["error"])
        return list(answer["found"])

    def wait_until_ready(self) -> None:
        assert self.run("SELECT 1") == [1]


@contextmanager
def applications(
    folder: Path, count: int, settings: Mapping[str, str]
) -> Iterator[list[Application]]:
    """Start Spark applications, all at once."""
    with ExitStack() as stack:
        found = []
        for number in range(count):
            command = [sys.executable, "-m", "tests.integration.spark_worker"]
            process = subprocess.Popen(
                [*command, f"application-{number}", str(folder), json.dumps(dict(settings))],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(_end, process)
            found.append(Application(process))
        for each in found:
            each.wait_until_ready()
        yield found


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()


class _Worker:
    """The process, from inside."""

    def __init__(self, name: str, spark: SparkSession, stack: ExitStack) -> None:
        self._name = name
        self._spark = spark
        self._stack = stack
        self._managers: dict[str, LockManager] = {}

    def answer(self, question: Question) -> dict[str, Any]:
        try:
            return {"found": self._found(question)}
        except (PySparkException, Py4JError, TxnError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _found(self, question: Question) -> list[Any]:
        if question.gate is not None:
            Gate(Path(question.gate)).register(self._spark)
        if question.only_explain:
            return [str(request) for request in session_requests(self._spark, question.sql)]
        if question.locks is None:
            rows = self._spark.sql(question.sql).collect()
        else:
            waiting = PATIENT if question.patient else Waiting(retries=0)
            manager = self._manager(question.locks)
            rows = locked_sql(self._spark, manager, question.sql, waiting=waiting)
        return [row[0] for row in rows]

    def _manager(self, uri: str) -> LockManager:
        if uri not in self._managers:
            lease = "session_ms" if uri.startswith("zookeeper") else "lease_ms"
            self._managers[uri] = open_manager(uri, name=self._name, **{lease: LEASE_MS})
            self._stack.callback(self._managers[uri].close)
        return self._managers[uri]


def main() -> None:
    name, folder, settings = sys.argv[1:]
    with (
        local_session(name, Path(folder) / name, config=json.loads(settings)) as spark,
        ExitStack() as stack,
    ):
        worker = _Worker(name, spark, stack)
        for line in sys.stdin:
            print(json.dumps(worker.answer(Question(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
