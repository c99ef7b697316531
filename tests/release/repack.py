"""Write an sdist again, so that its bytes depend only on its content and on SOURCE_DATE_EPOCH:
`repack.py FILE`. setuptools writes the time, the user and the modes of the build into it."""

import gzip
import os
import sys
import tarfile
from pathlib import Path


def repack(sdist: Path, epoch: int) -> None:
    made = sdist.with_suffix(".new")
    with (
        tarfile.open(sdist) as old,
        made.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            is_run = member.isdir() or member.mode & 0o100
            member.mode, member.mtime = 0o755 if is_run else 0o644, epoch
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    made.replace(sdist)


if __name__ == "__main__":
    repack(Path(sys.argv[1]), int(os.environ["SOURCE_DATE_EPOCH"]))
