"""`python -m tests.model`: search everything, and print the tables of docs/model/README.md.

With flags of the model, for instance `SHAPE=4 READS WITHOUT_S2`, it searches that one world and
prints the shortest counterexample, request by request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.model.spin import Search, search
from tests.model.worlds import CASES, LARGE_CASES, SHAPES, WITHOUT, WORLDS


def main(flags: Sequence[str]) -> int:
    if flags:
        found = search(flags, shortest=True)
        print(found.story, end="")
        print(f"violated: {found.violated}  {_measured(found)}")
        return 1 if found.violated else 0
    bad = 0
    for world, shape in CASES + LARGE_CASES:
        found = search([f"SHAPE={shape}", *WORLDS[world]], compressed=True)
        bad += found.violated is not None
        print(
            f"| {world} | {SHAPES[shape]} | {found.violated or 'all hold'} | {_measured(found)} |"
        )
    for rule, (world_flags, violated) in WITHOUT.items():
        found = search(world_flags, only=violated)
        bad += found.violated != violated
        print(f"| {rule} | `{' '.join(world_flags)}` | `{found.violated}` | {_measured(found)} |")
    return 1 if bad else 0


def _measured(found: Search) -> str:
    return f"{found.states:,} states, {found.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
