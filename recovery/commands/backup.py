"""`txn backup`: a checked copy of an embedded store in use."""

from __future__ import annotations

from typer import Argument, Exit

from recovery.backup import NONE_MADE
from recovery.backup import backup as copy_store
from recovery.commands import common


def backup(
    store: str = Argument(metavar="STORE", help="Its URI, such as embedded:///data."),
    dest: str = Argument(metavar="DEST", help="A folder that is absent or empty."),
    *,
    as_json: common.JsonOption = False,
) -> None:
    """Copy an embedded store while it is in use, and check the copy.

    The copy has all commits up to one instant, and opens as embedded://DEST. Nothing is at DEST
    before the copy is complete and on disk. To restore it, see docs/operations.md.

    Exit code 2: no backup was made.

    Example: txn backup embedded:///var/lib/app /backup/monday
    """
    with common.row_bar(common.console(), "backup", unit="", hidden=as_json) as bar:
        try:
            size = copy_store(store, dest, on_step=bar.show_step)
        except KeyboardInterrupt:
            common.complain(f"interrupted: {NONE_MADE}")
            raise Exit(common.COULD_NOT_RUN) from None
    line = f"backup of {size:,} bytes, checked: {dest}"
    common.print_result(as_json, {"path": dest, "bytes": size}, line)
