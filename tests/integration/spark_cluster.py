"""A Spark application in a process of its own, whose parts can be killed.

`Application` is its outside: it has named functions called there, `module:function`, with the
session and arguments that JSON can write. Executors are found among the descendants of its JVM.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from pyspark import SparkConf, SparkContext

from tests.integration.hbase import QUICK_JAVA
from txn.host.java import find_java_home
from txn.spark.session import local_session

ROOT = Path(__file__).parents[2]
HOSTS = "hosts"
"""Two executors of a core each, on two addresses of this machine, which Spark takes for two hosts:
only so does a task that straggles get a copy, as that is never where the task itself is."""
ADDRESSES = ("127.0.0.1", "127.0.0.2")
ENDS_WITHIN_S = 60
HAPPENS_WITHIN_S = 300  # the first task of a job needs its time on a busy machine
EXECUTOR = "CoarseGrainedExecutorBackend"
READY = "ready"


class JobFailedError(Exception):
    """The function failed in the application; the message is that of its error."""


class Application:
    """The process, from outside. It calls one function at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, function: str, **arguments: Any) -> None:
        """Have a function called, and return at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()

    def wait(self) -> Any:
        """Return what the function returned, or raise JobFailedError."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise JobFailedError("the application has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise JobFailedError(answer["error"])
        return answer["result"]

    def run(self, function: str, **arguments: Any) -> Any:
        """Call a function and return what it returns."""
        self.start(function, **arguments)
        return self.wait()

    def kill_executors(self) -> None:
        """Kill the executors and their Python workers, as machines that stop."""
        executors = [each for each in self._list_descendants() if EXECUTOR in _command(each)]
        assert executors
        _kill([one for each in executors for one in (each, *each.children(recursive=True))])

    def kill(self) -> None:
        """Kill the driver, its JVM, executors and Python workers, at once."""
        _kill([psutil.Process(self._process.pid), *self._list_descendants()])
        self._process.wait(ENDS_WITHIN_S)

    def close(self) -> None:
        """Let the application end, or kill what does not."""
        assert self._process.stdin is not None
        descendants = self._list_descendants()
        with suppress(BrokenPipeError):  # it was killed, with a call on its way
            self._process.stdin.close()
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        _kill(descendants)

    def _list_descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


@contextmanager
def run_application(
    folder: Path, master: str | None, settings: Mapping[str, str] | None = None
) -> Iterator[Application]:
    """Start an application; afterwards it has ended, with all its processes.

    folder: for all that Spark writes. master: None: tasks run in the driver's JVM. No task begins
    before all executors are there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    every = {
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        **(settings or {}),
    }
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with open(folder / "errors", "a") as errors:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.integration.spark_cluster",
                json.dumps([str(folder), master, every]),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        application = Application(process)
        try:
            assert application.wait() == READY, (folder / "errors").read_text()
            yield application
        finally:
            application.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Call the function until it says yes; TimeoutError where it does not in time."""
    due = time.monotonic() + HAPPENS_WITHIN_S
    while not is_so():
        if time.monotonic() > due:
            raise TimeoutError("it has not come to that")
        time.sleep(0.02)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _kill(processes: list[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(processes, timeout=ENDS_WITHIN_S)


def main() -> None:
    """The process, from inside."""
    folder, master, settings = json.loads(sys.argv[1])
    if master == HOSTS:
        master = _start_hosts(Path(folder))
    with local_session(
        "application", Path(folder), master=master, failures=4, config=settings
    ) as spark:
        _answer(result=READY)
        for line in sys.stdin:
            name, arguments = json.loads(line)
            module, _, function = name.partition(":")
            try:
                called = getattr(importlib.import_module(module), function)
                _answer(result=called(spark, **arguments))
            except Exception as error:  # noqa: BLE001
                _answer(error=f"{type(error).__name__}: {error}")


def _start_hosts(folder: Path) -> str:
    """Start a master and two workers in the session's JVM; return the URL of the master."""
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["SPARK_LOCAL_IP"] = ADDRESSES[0]
    SparkContext._ensure_initialized(
        conf=SparkConf().set("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={folder}"')
    )
    jvm: Any = SparkContext._jvm
    gateway: Any = SparkContext._gateway
    conf = jvm.org.apache.spark.SparkConf()
    deploy = jvm.org.apache.spark.deploy
    none = jvm.scala.Option.empty()
    started = deploy.master.Master.startRpcEnvAndEndpoint(ADDRESSES[0], 0, 0, conf)
    url = f"spark://{ADDRESSES[0]}:{started._1().address().port()}"
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    for number, address in enumerate(ADDRESSES):
        place = jvm.scala.Option.apply(number)
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            address, 0, 0, 1, 1024, urls, str(folder / "work"), place, conf, none
        )
    return url


def _answer(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
