"""`python -m tests.simulation`: as many schedules as one likes, on some processes, with a bar."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from multiprocessing import get_context
from typing import get_args

from rich.progress import track

from tests.history.simulated import run_chunk, run_seed
from txn.protocol.statuses import ProtocolName

CHUNK = 200


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    seeds = range(options.seed, options.seed + options.schedules)
    if options.trace:
        for seed in seeds:
            run_seed(seed, partial(print, flush=True), options.protocol)
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
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    context = get_context("spawn")  # a fork would copy the bar's thread half-way
    with context.Pool(processes) as pool:
        done = pool.imap_unordered(partial(run_chunk, protocol=protocol), chunks)
        return next(filter(None, track(done, "chunks of schedules", len(chunks))), None)


if __name__ == "__main__":
    sys.exit(main())
