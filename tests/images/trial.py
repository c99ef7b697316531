"""Use one image: start it, check its health, commit through it, stop it, and start it again.

`python -m tests.images.trial FOLDER IMAGE` runs in a new network namespace, which the container
shares: its ports are free there, and nothing outside reaches them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.images.buildah import Buildah, ImagesError, step
from txn import Key, Mutation, connect

UID = 10001
TABLE = "trial"
THRIFT1 = "hbase+thrift1://127.0.0.1:9090"  # through happybase
STORES = {
    "emulator": ("hbase+thrift2://127.0.0.1:9091", THRIFT1, "txn://127.0.0.1:9092"),
    "hbase": ("hbase://127.0.0.1:2181", THRIFT1, "hbase+thrift2://127.0.0.1:9091"),
}
"""Where each image offers its store; the first one can make tables."""

STARTS_WITHIN_S = 120
STOPS_WITHIN_S = 120  # as docker/compose.yaml gives it


class Container:
    """A container of an image, which keeps its files from one start to the next."""

    def __init__(self, buildah: Buildah, image: str) -> None:
        self._buildah = buildah
        self._config = buildah.describe(image)
        self._name = buildah.run("from", "--pull-never", image)
        self._log = buildah.folder / f"{image}.log"

    def start(self) -> None:
        """Start its command, and wait until it is healthy."""
        with self._log.open("ab") as log:
            self._runner = subprocess.Popen(
                self._command(self._config["Cmd"]), stdout=log, stderr=log
            )
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self.is_healthy():
            if self._runner.poll() is not None or time.monotonic() > deadline:
                raise ImagesError(f"it is not healthy; its output ends with:\n{self._output()}")
            time.sleep(0.5)

    def is_healthy(self) -> bool:
        """Run the health check beside its command, as an engine does."""
        check = self._command(self._config["Healthcheck"]["Test"][1:])
        return subprocess.run(check, capture_output=True, check=False).returncode == 0

    def processes(self) -> list[psutil.Process]:
        """Return what runs in it, also what no longer descends from its first process."""
        root = read_root(self._first().pid)
        return [each for each in psutil.process_iter() if read_root(each.pid) == root]

    def stop(self) -> None:
        """Send its stop signal to its first process; all of them must end, and that one with 0."""
        processes = self.processes()
        self._first().send_signal(signal.Signals[self._config["StopSignal"]])
        status = self._runner.wait(STOPS_WITHIN_S)
        if left := [each for each in processes if each.is_running()]:
            raise ImagesError(f"{left=}\n{self._output()}")
        expect(status, 0)

    def _first(self) -> psutil.Process:
        """The process of its command, which is the first below buildah's own."""
        below = psutil.Process(self._runner.pid).children(recursive=True)
        return next(each for each in below if not each.cmdline()[0].startswith("buildah"))

    def _command(self, words: list[str]) -> list[str | Path]:
        return self._buildah.line("run", self._name, "--", *words)

    def _output(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-20:])


def read_root(pid: int) -> str | None:
    """Return the root of a process, and None for one that has ended."""
    try:
        return os.readlink(f"/proc/{pid}/root")
    except OSError:
        return None


def commit(uris: Sequence[str]) -> None:
    """Commit a row through each store, after making the table through the first."""
    for uri in uris:
        with connect(uri, table=TABLE) as engine:
            if uri == uris[0]:
                engine.ensure_table(TABLE, ["d"])
            engine.commit([Mutation(Key(uri, "d", "from"), uri)])


def check_rows(uris: Sequence[str]) -> None:
    """Check that each store reads the rows that were committed through all of them."""
    for uri in uris:
        with connect(uri, table=TABLE) as engine:
            for other in uris:
                key = Key(other, "d", "from")
                cell = engine.read([key])[key]
                expect(cell and cell.value, other.encode())


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise ImagesError(f"{found=} {wanted=}")


def main(folder: str, image: str) -> int:
    """Take the container through its life."""
    container = Container(Buildah(Path(folder)), image)
    uris = STORES[image]
    try:
        with step(f"{image}: is not healthy before it is started"):
            expect(container.is_healthy(), False)
        with step(f"{image}: starts, and becomes healthy"):
            container.start()
        with step(f"{image}: runs as user {UID}"):
            expect({each.uids().real for each in container.processes()}, {UID})
        with step(f"{image}: takes commits by {', '.join(each.split(':')[0] for each in uris)}"):
            commit(uris)
            check_rows(uris)
        with step(f"{image}: ends at SIGTERM"):
            container.stop()
        with step(f"{image}: starts again, and has the data"):
            container.start()
            check_rows(uris)
    except ImagesError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
