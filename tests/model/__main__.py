"""`python -m tests.model`: search everything. With the name of a rule, print the shortest
counterexample of the world without it; with that of a world, search it; with flags of the model,
for instance `SHAPE=4 READS`, search what they define."""

import sys
from collections.abc import Sequence

from tests.model.spin import Search, search
from tests.model.worlds import CASES, LARGE_CASES, SHAPES, WITHOUT, WORLDS


def main(words: Sequence[str]) -> int:
    name = " ".join(words)
    if words and name not in WORLDS:
        flags, violated = WITHOUT.get(name, (words, None))
        found = search(flags, only=violated, shortest=True)
        print(found.story, end="")
        print(f"violated: {found.violated}  {_measured(found)}")
        return 1 if found.violated else 0
    bad = 0
    for world, shape in CASES + LARGE_CASES:
        if name in ("", world):
            found = search([f"SHAPE={shape}", *WORLDS[world]], compressed=True)
            bad += found.violated is not None
            print(f"{world}, {SHAPES[shape]}: {found.violated or 'all hold'}, {_measured(found)}")
    for rule, (flags, violated) in WITHOUT.items() if not words else ():
        found = search(flags, only=violated)
        bad += found.violated != violated
        print(f"without {rule!r}: {found.violated}, {_measured(found)}")
    return 1 if bad else 0


def _measured(found: Search) -> str:
    return f"{found.states:,} states, {found.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
