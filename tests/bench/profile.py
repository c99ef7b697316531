"""`python -m tests.bench profile`: where a client's time goes, by `py-spy`, of the extra `dev`.

One process commits transfers, or does their floor, from so many threads of one engine, and is
looked at some hundred times a second. What counts is who has the interpreter, which all threads
share: not who waits, nor who is in the kernel. *Own* is the share of samples in which code of this
part was running, a call of C in it included; *with callees*, in which it was anywhere on the stack.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from tests.bench import report, workloads
from tests.bench.measuring import Case, Protocol, open_engine
from tests.bench.servers import measured_hbase

PARTS = (
    ("txn/protocol/", "the protocol"),
    ("txn/client/", "engine, blocks, turns, gathering"),
    ("txn/reading/", "atomic reads"),
    ("txn/stores/hbase/native/", "the native store"),
    ("txn/stores/", "stores: pool, gateways, sockets"),
    ("txn/", "the rest of txn: keys, requests, policy"),
    ("google/protobuf", "protobuf"),
    ("thriftpy2", "thriftpy2"),
    ("msgpack", "msgpack"),
    ("tests/bench", "the bench"),
    ("", "Python's own library"),
)
"""A part of a path, and what it is called; the first that fits."""
ACCOUNTS = 1_000
WARM_S = 3.0
RATE = 250
TOP = 15
REPEATED = "_repeat ("
_FRAME = re.compile(r"(?P<name>.+?) \((?P<path>[^()]*?)(?::\d+)?\)$")


def part_of(frame: str) -> str:
    """Return which part a frame belongs to: `name (path:line)`."""
    match = _FRAME.match(frame)
    path = match["path"] if match else ""
    return next(name for text, name in PARTS if text in path)


def name_of(frame: str) -> str:
    """Return a frame as `file: function`."""
    match = _FRAME.match(frame)
    if match is None:
        return frame
    return f"{'/'.join(Path(match['path']).parts[-2:])}: {match['name']}"


def count_samples(lines: Iterable[str]) -> tuple[dict[str, Counter[str]], int]:
    """Return shares by part (own and with callees) and by function (own), of so many samples.

    A line is a stack, outermost first, joined by semicolons, and how often it was seen.
    """
    counts: dict[str, Counter[str]] = {"own": Counter(), "callees": Counter(), "top": Counter()}
    total = 0
    for line in lines:
        stack, _, times = line.rstrip().rpartition(" ")
        if REPEATED not in stack:  # it begins, or ends
            continue
        frames, number = stack.split(";"), int(times)
        total += number
        counts["own"][part_of(frames[-1])] += number
        counts["top"][name_of(frames[-1])] += number
        for part in {part_of(frame) for frame in frames}:
            counts["callees"][part] += number
    return counts, total


def work(uri: str, case: Case, seconds: float) -> None:
    """Do the work that is looked at."""
    with open_engine(uri, case) as engine:
        workloads.found(engine, ACCOUNTS, case.tables)
        end = time.monotonic() + seconds + WARM_S
        threads = [
            threading.Thread(target=_repeat, args=(case.bind(engine, Random(seed)), end))
            for seed in range(case.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _repeat(call: object, end: float) -> None:
    while time.monotonic() < end:
        call()  # type: ignore[operator]


def look(uri: str, options: argparse.Namespace) -> list[str]:
    """Run the work under py-spy; return its stacks."""
    beside = sysconfig.get_path("scripts")  # of this Python, whose folder need not be on PATH
    spy = shutil.which("py-spy", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if spy is None:
        raise SystemExit("there is no py-spy: pip install py-spy")
    with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
        stacks = Path(folder, "stacks")
        subprocess.run(
            [
                *(
                    spy,
                    "record",
                    "--gil",
                    "--format",
                    "raw",
                    "--rate",
                    str(RATE),
                    "--output",
                    str(stacks),
                ),
                *(
                    "--",
                    sys.executable,
                    "-m",
                    "tests.bench.profile",
                    "--work",
                    uri,
                    *_given(options),
                ),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return stacks.read_text().splitlines()


def _given(options: argparse.Namespace) -> list[str]:
    return [
        *(f"--protocol={options.protocol}", f"--threads={options.threads}"),
        *(f"--batch={options.batch}", f"--seconds={options.seconds}"),
    ]


def tell(found: dict[str, Counter[str]], total: int) -> list[list[str]]:
    """Print the tables; return the one of parts."""
    body = [
        [part, f"{count / total:.0%}", f"{found['callees'][part] / total:.0%}"]
        for part, count in found["own"].most_common()
    ]
    table = Table("part", "own", "with callees", title=f"{total:,} samples")
    for line in body:
        table.add_row(*line)
    top = Table("function", "own")
    for name, count in found["top"].most_common(TOP):
        top.add_row(name, f"{count / total:.1%}")
    for each in (table, top):
        Console(width=120).print(each)
    return body


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench profile", description=__doc__)
    parser.add_argument("--transport", choices=("native", "thrift2"), default="native")
    parser.add_argument("--protocol", choices=("six-phase", "fenced"), default="fenced")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1, help="transfers at a time; 0: the floor")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true", help="write nothing")
    parser.add_argument("--work", metavar="URI", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    protocol: Protocol = options.protocol
    if options.work:
        way = "threads"
        case = Case("transfer", options.batch, options.threads, protocol=protocol, way=way)
        work(options.work, case, options.seconds)
        return
    with measured_hbase() as hbase:
        stacks = look(hbase.native if options.transport == "native" else hbase.thrift2, options)
    body = tell(*count_samples(stacks))
    if not options.quick:
        report.put("profile", ["part of the client", "own", "with callees"], body)


if __name__ == "__main__":
    main()
