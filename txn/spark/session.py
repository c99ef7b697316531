"""A local Spark session on a suitable Java, which ends without leftovers.

Spark writes only into the given folder, and listens only on 127.0.0.1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from txn.host.java import find_java_home

JVM_ENDS_WITHIN_S = 30
MAX_SOCKET_FOLDER = 60
"""The most bytes in a socket folder's path: the kernel allows 107, and socket names are long."""


@contextmanager
def local_session(
    name: str,
    folder: Path,
    *,
    cores: int = 2,
    failures: int = 4,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Run a session in this process; afterwards its JVM and its Python workers have ended.

    cores: the number of tasks that run at once. failures: how often a task may fail before its job
    does. master: where tasks run; None: in the JVM of the session. With another master, such as
    `local-cluster[2,1,1024]`, cores only sets the number of partitions of a shuffle.
    config: more of Spark's settings. Raises JavaNotFoundError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={folder}"',
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.task.maxFailures": str(failures),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **choose_sockets(folder, master),
        **(config or {}),
    }
    builder = SparkSession.Builder().appName(name).master(master or f"local[{cores},{failures}]")
    spark = builder.config(map=dict(settings)).getOrCreate()
    try:
        yield spark
    except Exception as error:
        lines = str(error).splitlines()  # gets the text from the JVM, which is about to end
        error.add_note("\n".join(line for line in lines if not line.startswith("\tat ")))
        raise
    finally:
        spark.stop()
        _end_jvm()


def choose_sockets(folder: Path, master: str | None) -> dict[str, str]:
    """Return the settings for Unix sockets in the folder between Spark and its Python workers.

    With TCP, a worker that has run a dozen tasks waits 40 ms in each further one: Spark's last
    small write waits for an acknowledgement that the worker's kernel delays.
    """
    is_here = master is None or master.startswith("local")
    if not is_here or len(os.fsencode(folder)) > MAX_SOCKET_FOLDER:
        return {}
    return {
        "spark.python.unix.domain.socket.dir": str(folder),
        "spark.python.unix.domain.socket.enabled": "true",
    }


def _end_jvm() -> None:
    """End the JVM, which Spark would keep for the next session of the process."""
    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None or process.stdin is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    process.stdin.close()
    try:
        process.wait(JVM_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
