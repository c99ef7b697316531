"""Writes the golden rows of the current format: `python -m tests.golden.generate`.

Only files that are missing are written. What is there was written by a release, and stays.
"""

from __future__ import annotations

from pathlib import Path

from txn.assertions import And, Exact, GreaterThan, Not, Or, Some, Version
from txn.model import Delete, Key, Mutation
from txn.protocol.codec import FORMAT, Buffer, Plan, encode_buffer, encode_plan
from txn.request import Request

FOLDER = Path(__file__).parent / f"format{FORMAT}"

A = Key("alice", "d", "balance", "accounts")
B = Key("bob", "d", "balance", "accounts")
ODD = Key(bytes(range(256)), "f-1", b"\xff:/", "ns:odd.table")

BUFFERS = {
    "one-put": Buffer(Request((Mutation(A, b"100"),)), 10_000),
    "one-delete": Buffer(Request((Delete(A),)), 10_000),
    "assertion-only": Buffer(Request((), (Some(A),)), 1),
    "transfer": Buffer(
        Request((Mutation(A, b"90"), Mutation(B, b"110")), (Exact(A, b"100"), Exact(B, b"100"))),
        10_000,
    ),
    "every-assertion": Buffer(
        Request(
            (Mutation(ODD, bytes(range(256))), Delete(B)),
            (
                Exact(A, b"\x00"),
                GreaterThan(A, b"\xff" * 40),
                Version(A, None),
                Version(B, 1_790_000_000_000),
                Or(And(Some(A), Not(Some(B))), Not(Or(Some(ODD), Some(A)))),
            ),
            b"job-42/\x00/193",
            {"job": "load", "größe": "10 €", "": ""},
        ),
        86_400_000,
    ),
    "large-value": Buffer(Request((Mutation(A, b"0123456789abcdef" * 5_000),)), 10_000),
    "owner": Buffer(Request((Delete(A),), validate=True), 10_000, "größe.py[4711]@web-3"),
    "many-keys": Buffer(
        Request(tuple(Mutation(Key(f"row {i}", "d", "c", "t"), b"%d" % i) for i in range(300))),
        10_000,
    ),
}

PLANS = {
    "one": Plan(1_790_000_000_000, (1_789_999_999_999,)),
    "none": Plan(1, ()),
    "new-and-old": Plan(1_790_000_000_123, (0, 1, 1_789_999_999_999)),
    "held": Plan(
        1_790_000_000_123,
        (0, 1_789_999_999_999),
        (b"1@transaction.1", b"9999999999@transaction.1 -,0123abcd"),
    ),
    "far": Plan((1 << 63) - 2, (0,) * 300),
}


def files() -> dict[str, bytes]:
    """Return the name and the content of each golden file, as the current code writes it."""
    buffers = {
        f"{name}.buffer": encode_buffer(buffer.request, buffer.lock_ttl_ms, buffer.owner)
        for name, buffer in BUFFERS.items()
    }
    plans = {f"{name}.plan": encode_plan(plan) for name, plan in PLANS.items()}
    return buffers | plans


def main() -> None:
    """Write the files that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        path = FOLDER / name
        if not path.exists():
            path.write_bytes(content)
            print(f"wrote {path.name}: {len(content)} bytes")


if __name__ == "__main__":
    main()
