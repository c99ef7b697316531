"""Transfers in parts, whose tasks are written by processes of their own, as on Spark.

`python -m tests.chaos.parts URI` is such a process: it writes what comes on its standard input, and
ends with that. So a task may go on for a while after its client was killed.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.chaos.bank import POLICY, TABLE
from tests.simulation.parted import TASKS, Part, split_request, write_task
from txn import AbortedError, Committed, Engine, Request, StoreError, TxnError, connect
from txn.client.parts import PartsClient
from txn.request import Ack

WAIT_MS = POLICY.lock_ttl_ms + 1_000
Write = Callable[[Engine, bytes, int, list[Part]], int]
"""Writes the parts of a task; returns the greatest of their timestamps."""


def write_here(engine: Engine, transaction: bytes, task: int, parts: list[Part]) -> int:
    return write_task(PartsClient(engine, WAIT_MS), transaction, task, parts)


class TaskProcesses:
    """A process for each task, and one that makes every task of the first kind again."""

    def __init__(self, uri: str) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.parts", uri],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(TASKS + 1)
        ]

    def write(self, engine: Engine, transaction: bytes, task: int, parts: list[Part]) -> int:
        """Write a task's parts, the first task twice at once; raise what the last writer raised."""
        copies = [task, TASKS] if task == 0 else [task]
        for number in copies:
            pickle.dump((transaction, task, parts), self._stream(number, "stdin"))
            self._stream(number, "stdin").flush()
        results = [pickle.load(self._stream(number, "stdout")) for number in copies]
        if failures := [result for result in results if isinstance(result, TxnError)]:
            raise failures[-1]
        return max(results)

    def _stream(self, number: int, name: str) -> IO[bytes]:
        stream: IO[bytes] | None = getattr(self._processes[number], name)
        assert stream is not None
        return stream

    def close(self) -> None:
        for number, process in enumerate(self._processes):
            self._stream(number, "stdin").close()
            process.wait()
            self._stream(number, "stdout").close()


def commit_in_parts(
    engine: Engine, requests: Sequence[Request], ack: Ack, write: Write = write_here
) -> list[Committed | TxnError]:
    """Commit one request after the other, each as a transaction in parts."""
    results: list[Committed | TxnError] = []
    for request in requests:
        try:
            results.append(_commit_in_parts(engine, request, ack, write))
        except TxnError as error:
            results.append(error)
    return results


def _commit_in_parts(engine: Engine, request: Request, ack: Ack, write: Write) -> Committed:
    client = PartsClient(engine, WAIT_MS)
    transaction = client.begin(labels=request.labels)
    tasks = split_request(engine, request.mutations, request.assertions)
    try:
        with client.sending_heartbeats(transaction), ThreadPoolExecutor(TASKS) as pool:
            written: list[Future[int]] = [
                pool.submit(write, engine, transaction, n, parts) for n, parts in enumerate(tasks)
            ]
            newest = max(done.result() for done in written)
        return client.commit(transaction, [len(parts) for parts in tasks], newest, ack)
    except (AbortedError, StoreError) as error:
        with suppress(StoreError):
            client.abort(transaction, str(error))
        raise


def main() -> None:
    engine: Engine | None = None
    with suppress(EOFError):
        while True:
            work = pickle.load(sys.stdin.buffer)
            try:
                engine = engine or connect(sys.argv[1], table=TABLE, policy=POLICY)
                result: object = write_here(engine, *work)
            except TxnError as error:
                result = error
            pickle.dump(result, sys.stdout.buffer)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
