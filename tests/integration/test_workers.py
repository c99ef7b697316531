"""The logs that killed processes leave."""

from __future__ import annotations

from pathlib import Path

from tests.integration.workers import Log, told


def test_an_entry_that_a_kill_has_cut_short_hides_no_other(tmp_path: Path) -> None:
    """The kernel may end a write where it crosses a page: others have appended behind it."""
    path = tmp_path / "log"
    Log(path).add(enter={"a": 1})
    entry = path.read_text()
    for size in range(len(entry) - 1):
        path.write_text(entry[:size])
        Log(path).add(enter="b")
        assert told(path) == [{"enter": "b"}]
