"""The Spark job of the demonstration, in its own process so that it can be killed.

It writes lines of JSON to its standard output: the number of flights, how many are loaded, and at
the end the requested result. Lines come often enough that the starter does not take it for dead.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from txn.demo.data import WayName, tables_named
from txn.demo.loading import WAYS, Load
from txn.demo.proof import reconcile
from txn.spark.partitions import Counts
from txn.spark.session import local_session

CORES = 2
REPORT_EACH_S = 0.1


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def read_flights(spark: SparkSession, csv: Path) -> DataFrame:
    """Return the flights of the CSV, every column as text, NA as null."""
    return spark.read.csv(str(csv), header=True, nullValue="NA")


def load_flights(load: Load, by: WayName) -> int:
    """Commit each flight that is not loaded yet, exactly once; return how many transactions that
    is."""
    with saying("reading", dict):
        total = load.flights.count()
    way = WAYS[by]
    say("total", flights=total, steps=way.count_steps(total))
    began_s = time.monotonic()
    with way.open_meter(load) as meter, saying("progress", meter):
        way.run(load, total)
    say("loaded", **asdict(load.counts.summary()), seconds=round(time.monotonic() - began_s, 2))
    return way.count_transactions(total)


@contextmanager
def saying(event: str, facts: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Send the event again and again, with the present facts, until the block ends."""
    over = Event()

    def repeat() -> None:
        while not over.wait(REPORT_EACH_S):
            say(event, **facts())

    reporter = Thread(target=repeat)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="txn.demo.job")
    parser.add_argument("--store", required=True)
    parser.add_argument("--tables", type=tables_named, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--by", choices=list(WAYS), default="partition")
    parser.add_argument("--reconcile", action="store_true")
    asked = parser.parse_args(arguments)
    with local_session("flights", asked.folder, cores=CORES) as spark:
        with saying("reading", dict):
            flights = read_flights(spark, asked.csv).cache()  # used three times
        load = Load(asked.store, asked.tables, flights, Counts.of(spark), asked.folder)
        transactions = load_flights(load, asked.by)
        if asked.reconcile:
            with saying("proving", dict):  # takes minutes for the whole year
                checks = reconcile(spark, asked.store, asked.tables, flights, transactions)
            say("reconciled", checks=[asdict(check) for check in checks])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
