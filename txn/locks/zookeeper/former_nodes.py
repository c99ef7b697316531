"""Explicit locks in ZooKeeper that an older version has put into folders with capitals.

It told `Sales/Orders` from `sales/orders`. What it left there would deny nobody and could not be
given back: so it is moved when the locks are first opened, to the end of the line in the folder of
today. Nodes of sessions end with these, and are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from txn.errors import StoreError
from txn.locks.requests import Path
from txn.locks.zookeeper.keeper import Create, Gone, Keeper, RemoveNode
from txn.locks.zookeeper.nodes import KINDS, Folders, Line, Note, line_of, parse_node, part_of

DONE = b"lower"
"""What the base holds once that was done; folders hold nothing."""


def move_nodes(keeper: Keeper, folders: Folders) -> None:
    """Move such locks to the names in lower case, unless somebody has done so before."""
    (base,) = keeper.about([folders.base])
    if base is not None and base.data == DONE:
        return
    keeper.make_folders(folders.all([]))
    left = []
    for folder, at, line in list(_lines(keeper, folders.base, ())):
        if folder != folders.of(at):
            keeper.make_folders(folders.all([at]))
            _move(keeper, folder, line, folders.of(at))
            left.append(folder)
    keeper.tidy(sorted(left, reverse=True))
    with suppress(StoreError):  # one that may not write there looks again each time
        keeper.write(folders.base, DONE)


def _lines(keeper: Keeper, folder: str, parts: tuple[str, ...]) -> Iterator[tuple[str, Path, Line]]:
    """Yield each folder within this one, the object that it is of, and who stands there."""
    for name in (name for name in keeper.children(folder) if parse_node(name) is None):
        inner, at = f"{folder}/{name}", (*parts, part_of(name))
        yield inner, Path(at), line_of(keeper.children(inner))
        yield from _lines(keeper, inner, at)


def _move(keeper: Keeper, folder: str, line: Line, to: str) -> None:
    nodes = [f"{folder}/{node.name}" for node in line]
    for at, node, about in zip(nodes, line, keeper.about(nodes), strict=True):
        note = about and Note.decode(about.data, about.made_in)
        if note and note.explicit:
            name = f"{to}/{KINDS[node.mode]}{node.ticket}-"
            with suppress(Gone):  # somebody else has moved it, or given it back
                keeper.change([RemoveNode(at), Create(name, note.encode(), False, True)])
