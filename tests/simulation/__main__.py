"""`python -m tests.simulation`: as many schedules as one likes, on some processes, with a bar."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import get_args

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.seeds import run, run_chunk
from txn.protocol.statuses import ProtocolName

CHUNK = 200


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    seeds = range(options.seed, options.seed + options.schedules)
    if options.trace:
        for seed in seeds:
            run(seed, partial(print, flush=True), options.protocol)
        return 0
    failure = run_all(seeds, options.processes, options.protocol)
    if failure is not None:
        print(failure, file=sys.stderr)
        return 1
    print(f"{len(seeds)} schedules from seed {options.seed}: everything held")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first one; the others follow")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--protocol", choices=get_args(ProtocolName), default="six-phase")
    parser.add_argument("--trace", action="store_true", help="print each call of the store")
    return parser.parse_args(arguments)


def run_all(seeds: range, processes: int, protocol: ProtocolName) -> str | None:
    chunks = (seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK))
    bar = Progress(
        TextColumn("schedules"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )
    context = get_context("spawn")  # a fork would copy the bar's thread half-way
    with bar, ProcessPoolExecutor(processes, context) as pool:
        task = bar.add_task("schedules", total=len(seeds))
        for chunk, failure in run_chunks(pool, chunks, 2 * processes, protocol):
            bar.advance(task, len(chunk))
            if failure is not None:
                pool.shutdown(cancel_futures=True)
                return failure
    return None


def run_chunks(
    pool: ProcessPoolExecutor, chunks: Iterator[range], most: int, protocol: ProtocolName
) -> Iterator[tuple[range, str | None]]:
    running: dict[Future[str | None], range] = {}
    while True:
        for chunk in islice(chunks, most - len(running)):
            running[pool.submit(run_chunk, chunk, protocol)] = chunk
        if not running:
            return
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(done), done.result()


if __name__ == "__main__":
    sys.exit(main())
