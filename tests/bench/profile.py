"""`python -m tests.bench profile`: where a client's time goes, by `py-spy`, of the extra `dev`.

One process commits transfers, or does their floor, from so many threads of one engine, and is
looked at some hundred times a second. What counts is who has the interpreter, which all threads
share: not who waits, nor who is in the kernel. *Own* is the share of samples in which code of this
part was running, a call of C in it included; *with callees*, in which it was anywhere on the stack.

The embedded store is one without sync, which the process has for itself. `--project` names another
checkout, whose code is then looked at in place of this one's.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from rich import box
from rich.console import Console
from rich.table import Table

from tests.bench import workloads
from tests.bench.measuring import Case, Protocol, open_engine
from tests.bench.servers import measured_hbase

PARTS = (
    ("txn/protocol/", "the protocol"),
    ("txn/client/", "engine, blocks, turns, gathering"),
    ("txn/reading/", "atomic reads"),
    ("txn/stores/hbase/native/", "the native store"),
    ("txn/stores/", "stores: pool, gateways, sockets"),
    ("txn/tables/", "tables: cells, rows, LMDB"),
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
TRANSPORTS = ("native", "thrift2", "embedded")
REPEATED = "_repeat ("
ROOT = Path(__file__).parents[2]
_MODULE = re.compile(r"(?:^|/)(txn/[^ ]*\.py)")
_FRAME = re.compile(r"(?P<name>.+?) \((?P<path>[^()]*?)(?::\d+)?\)$")


def part_of(frame: str) -> str:
    """Return which part a frame belongs to: `name (path:line)`."""
    match = _FRAME.match(frame)
    path = match["path"] if match else ""
    return next(name for text, name in PARTS if text in path)


def module_of(frame: str) -> str:
    """Return the module of ours that a frame belongs to, else its part."""
    match = _FRAME.match(frame)
    module = _MODULE.search(match["path"]) if match else None
    return module[1] if module else part_of(frame)


def name_of(frame: str) -> str:
    """Return a frame as `file: function`."""
    match = _FRAME.match(frame)
    if match is None:
        return frame
    return f"{'/'.join(Path(match['path']).parts[-2:])}: {match['name']}"


def count_samples(lines: Iterable[str]) -> tuple[dict[str, Counter[str]], int]:
    """Return shares by part (own and with callees), by module and by function (own), of so many
    samples.

    A line is a stack, outermost first, joined by semicolons, and how often it was seen.
    """
    counts = {name: Counter[str]() for name in ("own", "callees", "modules", "top")}
    total = 0
    for line in lines:
        stack, _, times = line.rstrip().rpartition(" ")
        if REPEATED not in stack:  # it begins, or ends
            continue
        frames, number = stack.split(";"), int(times)
        total += number
        counts["own"][part_of(frames[-1])] += number
        counts["modules"][module_of(frames[-1])] += number
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
        record = [spy, "record", "--gil", "--format", "raw", "--rate", str(RATE)]
        program = [sys.executable, "-m", "tests.bench.profile", "--work", uri, *_given(options)]
        subprocess.run(
            [*record, "--output", str(stacks), "--", *program],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=options.project,
            env={**os.environ, "PYTHONPATH": str(options.project)},
        )
        return stacks.read_text().splitlines()


def _given(options: argparse.Namespace) -> list[str]:
    return [
        *(f"--protocol={options.protocol}", f"--threads={options.threads}"),
        *(f"--batch={options.batch}", f"--seconds={options.seconds}"),
    ]


def tell(found: dict[str, Counter[str]], total: int, title: str, *, markdown: bool = False) -> None:
    """Print the tables."""
    shape = {"box": box.MARKDOWN} if markdown else {}
    console = Console(width=120)
    console.print(f"{title}: {total:,} samples", highlight=False)
    table = Table("part", "own", "with callees", **shape)  # type: ignore[arg-type]
    for part, count in found["own"].most_common():
        table.add_row(part, f"{count / total:.0%}", f"{found['callees'][part] / total:.0%}")
    console.print(table)
    for heading, name in (("module", "modules"), ("function", "top")):
        table = Table(heading, "own", **shape)  # type: ignore[arg-type]
        for each, count in found[name].most_common(TOP):
            table.add_row(each, f"{count / total:.1%}")
        console.print(table)


@contextmanager
def opened(transport: str) -> Iterator[str]:
    """Give the URI of the store that is worked on."""
    if transport == "embedded":
        with tempfile.TemporaryDirectory(prefix="txn-bench-") as folder:
            yield f"embedded://{folder}/store?sync=off"
        return
    with measured_hbase() as hbase:
        yield hbase.native if transport == "native" else hbase.thrift2


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench profile", description=__doc__)
    parser.add_argument("--transport", choices=TRANSPORTS, default="native")
    parser.add_argument("--protocol", choices=("six-phase", "fenced"), default="fenced")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1, help="transfers at a time; 0: the floor")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--markdown", action="store_true", help="print tables for a page")
    parser.add_argument("--project", type=Path, default=ROOT, metavar="FOLDER", help="a checkout")
    parser.add_argument("--work", metavar="URI", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    protocol: Protocol = options.protocol
    if options.work:
        case = Case("transfer", options.batch, options.threads, protocol=protocol, way="threads")
        work(options.work, case, options.seconds)
        return
    with opened(options.transport) as uri:
        stacks = look(uri, options)
    title = f"{options.transport}, {protocol}, threads: {options.threads}, batch: {options.batch}"
    tell(*count_samples(stacks), title, markdown=options.markdown)


if __name__ == "__main__":
    main()
