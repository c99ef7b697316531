"""`python -m tests.chaos.guard FOLDER`: ends the cluster in a folder when its input ends.

Whoever starts a cluster starts this first and holds the other end of its input: however that
process dies, no server outlives it.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txn.cluster.cluster import RECORD, open_cluster

ROOT = Path(__file__).parents[2]
ENDS_WITHIN_S = 150  # three groups of servers, each of which has 30 s to be gone


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Whatever cluster is started in the folder is ended at the end."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.guard", str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        start_new_session=True,  # what ends us from the terminal must not end it
    )
    try:
        yield
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait(ENDS_WITHIN_S)


def main() -> None:
    sys.stdin.buffer.read()
    folder = Path(sys.argv[1])
    if (folder / RECORD).exists():
        open_cluster(folder).stop(grace_ms=0)


if __name__ == "__main__":
    main()
