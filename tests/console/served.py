"""A `txn console` in a process of its own, as a person starts it; and one in this process, over a
store of the test's own."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery.console.server import make_server
from recovery.console.settings import ConsoleSettings
from recovery.console.state import Console
from txn.protocol.context import Context
from txn.server.options import listen

PATIENCE_S = 60
TOKEN = "token"


@dataclass(frozen=True, slots=True)
class ServedConsole:
    """One that runs. url: without the `/` at its end. token: None where it has that of a file."""

    process: subprocess.Popen[str]
    url: str
    token: str | None
    log: Path

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def serve_store(store: str, log: Path, *arguments: str) -> Iterator[ServedConsole]:
    """Run `txn console` on a store, on a free port unless told otherwise."""
    command = [sys.executable, "-c", "from recovery.commands import main; main()", "console"]
    command += ["--store", store, "--port", "0", "--json", *arguments]
    with log.open("a") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"it has ended with {process.wait(PATIENCE_S)}: {log.read_text()}"
        told = json.loads(line)
        yield ServedConsole(process, told["url"].rstrip("/"), told["token"], log)
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stdout.close()


@contextmanager
def serve_here(context: Context, leases: str | None = None, **settings: Any) -> Iterator[str]:
    """Serve a console in a thread of this process, with `TOKEN`; return its address."""
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        own = ConsoleSettings("memory://", TOKEN, leases=leases, port=port, **settings)
        console = Console(own, context)
        server = make_server(console)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()
            console.close()
