"""Damage in a store's data file is an error of ours, or the end of the process: see bit_flips."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.integration.bit_flips import choose_bits, flip_bits, make_store
from txn.protocol.statuses import ProtocolName

ENDED = {"SIGABRT", "SIGBUS", "SIGSEGV"}


def flip(path: str, positions: Iterable[int]) -> None:
    for position, ends in flip_bits(path, positions):
        strange = [end for end in ends if end.startswith(("raw", "SIG")) and end not in ENDED]
        assert not strange, (position, strange)


@pytest.mark.parametrize(
    ("protocol", "positions"), [("six-phase", (754_160, 1_177_901)), ("fenced", (765_236,))]
)
def test_a_flipped_bit_is_an_error_of_ours(
    tmp_path: Path, protocol: ProtocolName, positions: tuple[int, ...]
) -> None:
    """A service that catches our errors is not ended by ValueError or struct.error. And a scan ends
    although a key in an inner page leads it back."""
    make_store(str(tmp_path / "store"), protocol)
    flip(str(tmp_path / "store"), positions)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_any_flipped_bit_is_an_error_of_ours(tmp_path: Path, protocol: ProtocolName) -> None:
    """Or none at all, or one that ends the process: values have no checksum."""
    path = str(tmp_path / "store")
    make_store(path, protocol)
    flip(path, choose_bits(path, 500, random.Random(3)))
