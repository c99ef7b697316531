"""LMDB's lock file before LMDB opens it: its space, and the reader slots of dead processes.

LMDB frees such slots only through an open environment, and opening one takes a slot. So where all
are taken, the dead ones are freed here. A living process with slots has the file's byte of its
process number locked. Whoever gets that lock knows that the process is dead; while it has the lock,
nobody else frees these slots, and no new process of that number takes one.

No function may run while the file is open in this process: to close a descriptor of it would end
LMDB's locks.
"""

from __future__ import annotations

import os
import struct
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf

NAME = "lock.mdb"

_SLOT_BYTES = 64
_HEADER_BYTES = 2 * _SLOT_BYTES  # at least: LMDB adds what it lacks
_STAMP_BYTES = 8  # LMDB's magic, and the layout of the file
_PROCESS = struct.Struct("@i")
_PROCESS_AT = struct.calcsize("@N")  # in a slot, behind the number of a commit


def make_lock_file(folder: str, max_readers: int) -> None:
    """Give a lock file that is absent or empty its space: on a full disk, a mapped page without
    space kills the process that writes to it."""
    path = os.path.join(folder, NAME)
    if os.path.exists(path) and os.path.getsize(path):
        return
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.write(bytes(_HEADER_BYTES + max_readers * _SLOT_BYTES))
    except OSError:
        os.truncate(path, 0)
        raise


def free_dead_slots(folder: str, model: str) -> int:
    """Free the slots of dead processes; return how many slots there are.

    model: a folder with a lock file of one slot, made by the same LMDB; it tells the layout.
    """
    with open(os.path.join(model, NAME), "rb") as one:
        pattern = one.read()
    file = os.open(os.path.join(folder, NAME), os.O_RDWR)
    try:
        content = os.pread(file, os.fstat(file).st_size, 0)
        slots = range(len(pattern) - _SLOT_BYTES, len(content) - _SLOT_BYTES + 1, _SLOT_BYTES)
        if content[:_STAMP_BYTES] == pattern[:_STAMP_BYTES]:
            for process in {_read_process(file, slot) for slot in slots}:
                if process > 0:
                    _free_slots_of(process, file, slots)
        return len(slots)
    finally:
        os.close(file)


def _free_slots_of(process: int, file: int, slots: range) -> None:
    try:
        lockf(file, LOCK_EX | LOCK_NB, 1, process)
    except (BlockingIOError, PermissionError):
        return
    for slot in slots:
        if _read_process(file, slot) == process:
            os.pwrite(file, _PROCESS.pack(0), slot + _PROCESS_AT)
    lockf(file, LOCK_UN, 1, process)


def _read_process(file: int, slot: int) -> int:
    process: int = _PROCESS.unpack(os.pread(file, _PROCESS.size, slot + _PROCESS_AT))[0]
    return process
