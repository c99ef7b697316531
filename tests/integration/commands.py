"""The console script, in a process of its own or, which costs no start, in that of the test."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

import pytest

from recovery.commands import main

START = [sys.executable, "-c", "from recovery.commands import main; main()"]


def run_apart(*arguments: str, given: str = "", **variables: str) -> CompletedProcess[str]:
    """Run the command as a person does. It must not print a trace, whatever happens."""
    done = subprocess.run(
        [*START, *arguments],
        input=given,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def run_here(*arguments: str, given: str = "", **variables: str) -> CompletedProcess[str]:
    """Do what `run_apart` does in this process, without what other libraries log."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["txn", *arguments])
        patch.setattr(sys, "excepthook", sys.excepthook)  # the command sets another
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        with pytest.raises(SystemExit) as end:
            main()
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return CompletedProcess(arguments, int(end.value.code or 0), out.getvalue(), err.getvalue())
