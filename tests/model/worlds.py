"""What is searched: the shapes and worlds that must hold, and what breaks without each rule."""

from pathlib import Path

SHAPES = {
    1: "both put both",
    2: "write skew",
    3: "delete and put",
    4: "a key each",
    5: "delete, put, of one key",
    6: "delete and put, alone",
    7: "put both, also blindly",
    8: "three, put both, put, delete",
    9: "three, put, put, delete, of one key",
    10: "four, put both, put, delete, put",
    11: "three, put both, write skew",
    12: "three, put both, put both, assert and delete",
    13: "put both, assert and put",
    14: "put, assert and put",
}
SEARCHED: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "commits": ("", (1, 2, 3, 4), ()),
    "reads": ("READS", (4,), (1, 2, 3)),
    "ranges": ("READS RANGES", (4,), ()),
    "loses": ("LOSES", (4, 5), (3,)),
    "reads, losing": ("READS LOSES NO_DELETED_ROWS", (), (4,)),
    "ranges, losing": ("READS RANGES LOSES NO_DELETED_ROWS", (), (4,)),
    "validates": ("READS KEYS", (4,), ()),
    "validates each other's": ("READS KEYS MUTUAL NO_DELETED_ROWS", (4,), ()),
    "validates, losing": ("READS KEYS LOSES NO_DELETED_ROWS", (), (4,)),
    "retires": ("RETIRES", (5,), ()),
    "reads beside a retirer": ("READS RETIRES", (6,), ()),
    "snapshots": ("SNAPSHOTS", (10,), ()),
    "instants": ("SNAPSHOTS PLANS", (8,), ()),
    "fenced commits": ("FENCED", (1, 2, 3, 4, 7), ()),
    "fenced commits, owners free nothing": ("FENCED NO_OWN_RELEASE", (), (9,)),
    "fenced commits, and rows stay": ("FENCED NO_DELETED_ROWS", (), (8,)),
    "fenced commits, waiting": ("FENCED WAITS", (1,), ()),
    "fenced commits of one unit": ("FENCED ROWLESS=2", (8,), ()),
    "fenced retires": ("FENCED RETIRES", (5,), ()),
    "fenced retires, one unit": ("FENCED RETIRES ROWLESS=2", (9,), ()),
    "fenced loses": ("FENCED LOSES", (1, 3), ()),
    "fenced reads": ("FENCED READS", (1, 2, 3, 4), (8,)),
    "fenced reads of one row": ("FENCED READS ONE_ROW", (1,), ()),
    "fenced reads beside one unit": ("FENCED READS ROWLESS=2", (8,), ()),
    "fenced commits in a region": ("FENCED ROWLESS=2", (11,), (12,)),
    "fenced splits": ("FENCED ROWLESS=2 SPLIT NO_DELETED_ROWS", (13,), (7,)),
    "fenced reads beside a region": ("FENCED READS ROWLESS=2", (12,), ()),
    "fenced reads of one row beside a region": ("FENCED READS ROWLESS=2 ONE_ROW", (), (12,)),
    "fenced validates beside a region": ("FENCED READS KEYS MUTUAL ROWLESS=2", (), (14,)),
    "fenced validates": ("FENCED READS KEYS", (4,), ()),
    "fenced validates each other's": ("FENCED READS KEYS MUTUAL", (4,), ()),
    "fenced validates, losing": ("FENCED READS KEYS LOSES", (4,), ()),
    "fenced instants": ("FENCED SNAPSHOTS PLANS", (8,), ()),
}
"""By world: its flags, its shapes, and those that only `make model` searches, for their size."""
WORLDS = {world: flags.split() for world, (flags, _, _) in SEARCHED.items()}
CASES = [(world, shape) for world, (_, shapes, _) in SEARCHED.items() for shape in shapes]
LARGE_CASES = [(world, shape) for world, (_, _, large) in SEARCHED.items() for shape in large]


def _load_rules() -> dict[str, tuple[list[str], str]]:
    """Read rules.tsv: a world, a rule, its flags without `WITHOUT_`, the property that it keeps."""
    found = {}
    for line in Path(__file__).with_name("rules.tsv").read_text().splitlines():
        world, rule, flags, violated = line.split("\t")
        name = f"fenced: {rule}" if world.startswith("FENCED") else rule
        without = [f"WITHOUT_{flag}" for flag in flags.split()]
        found[name] = ([*world.split(), *without], violated)
    return found


WITHOUT = _load_rules()
"""By rule: the flags of a world that lacks it, and the property that is violated there."""

HARMLESS_FENCED = {
    "the free lock at C": "SHAPE=3 FREE_AT_C",
    "an owner that read its decision finishes without comparing, in time": (
        "SHAPE=3 OWN_READ_IS_YES"
    ),
    "a reader takes the buffer at 5": "SHAPE=4 READS BUFFER_AT_5",
}
HARMLESS_ALONE = ("WITHOUT_EMPTY_VALUES", "WITHOUT_LATEST_TIMESTAMP", "WITHOUT_LOCK_CHECK")


def named(case: str) -> str:
    return case.replace(" ", "-").replace(",", "")
