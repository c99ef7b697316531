"""The client processes: starting them, killing them, and noticing one that ended by itself.

A place in the crew (`w3`) is taken by one process after the other (`w3.1`, `w3.2`), each with a
history of its own. All of them end when their standard input does, so they cannot outlive us.
"""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAYS = ("native", "thrift2", "thrift1")
WRITERS = ("writer", "batch-writer", "thread-writer")
PARTS_WRITER = "parts-writer"
"""Beside these, and natively: a gateway of Thrift 1 cannot commit in parts."""
READERS = 2
SNAPSHOTS = "s"
"""The first letter of the place of one that reads in tasks, as of an instant: natively, since no
gateway may answer its tasks from the past."""
TAIL = 1500


def places(writers: int, ways: Sequence[str] = WAYS, seed: int = 0) -> dict[str, tuple[str, str]]:
    """Return the places: name -> role, way to HBase. The ways take turns. So do the kinds of
    writers, from one that the seed chooses, so that enough of them are each kind on each way."""
    kinds = [seed + sum(divmod(number, len(ways))) for number in range(writers)]
    roles = [("w", WRITERS[kind % len(WRITERS)]) for kind in kinds]
    roles += [*(("r", "reader"),) * READERS, ("f", "fsck")]
    found: dict[str, tuple[str, str]] = {}
    for number, (letter, role) in enumerate(roles):
        found[f"{letter}{number}"] = role, ways[number % len(ways)]
    found[f"p{len(roles)}"] = PARTS_WRITER, WAYS[0]
    found[f"{SNAPSHOTS}{len(roles) + 1}"] = "snapshot-reader", "native"
    return found


def place_of(operation: str) -> str:
    """Return the place of whoever did an operation, by its name."""
    return operation.partition(".")[0]


class Crew:
    """Who holds which place now."""

    def __init__(
        self, crew: Mapping[str, tuple[str, str]], uris: Mapping[str, str], folder: Path, seed: int
    ) -> None:
        self.places = crew
        self.crashes: list[str] = []
        self._uris = uris
        self._folder = folder
        self._seed = seed
        self._started: dict[str, int] = dict.fromkeys(crew, 0)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, place: str) -> None:
        """Put a new process in a place, after its predecessor has ended."""
        self._started[place] += 1
        name = f"{place}.{self._started[place]}"
        role, way = self.places[place]
        log = self._folder / f"{name}.jsonl"
        arguments = (role, self._uris[way], name, f"{self._seed}/{name}", str(log))
        with log.with_suffix(".err").open("wb") as errors:
            self._running[place] = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.client", *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
            )

    def start_all(self) -> None:
        for place in self.places:
            self.start(place)

    def kill(self, place: str) -> None:
        """End the process in a place with SIGKILL. If it had ended before, that is remembered."""
        process = self._running.pop(place)
        process.send_signal(signal.SIGCONT)
        process.kill()
        assert process.stdin is not None
        process.stdin.close()
        if (code := process.wait()) != -signal.SIGKILL:
            name = f"{place}.{self._started[place]}"
            said = (self._folder / f"{name}.err").read_text(errors="replace")
            self.crashes.append(f"client {name} ended by itself, code {code}: {said[-TAIL:]}")

    def pause(self, place: str) -> None:
        """Stop the process in a place for a while, without its knowing."""
        self._running[place].send_signal(signal.SIGSTOP)

    def resume(self, place: str) -> None:
        self._running[place].send_signal(signal.SIGCONT)

    def replace_fallen(self) -> None:
        """Fill the places of those that ended by themselves; `crashes` says which did."""
        for place in [place for place, each in self._running.items() if each.poll() is not None]:
            self.kill(place)
            self.start(place)

    def end(self) -> None:
        """Kill all of them."""
        for place in list(self._running):
            self.kill(place)
