"""`make chaos`: a bank on a real HBase whose clients and servers are killed at random.

Ends with 0 if everything held, and with 1 and the violations if it did not; then the histories and
the servers' logs are kept.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.chaos.report import document, table
from tests.chaos.run import Plan, Shown, Tally, run
from txn.protocol.statuses import ProtocolName


def main() -> int:
    """Parse, run, and say how it went."""
    options = parse()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="txn-chaos-"))
    plan = Plan(
        folder.absolute(),
        options.minutes * 60,
        options.writers,
        options.seed,
        protocol=options.protocol,
    )
    errors = Console(stderr=True)
    with Live(console=errors, refresh_per_second=4) as live:
        result = run(plan, _shown(live, plan))
    figures = document(result)
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        Console().print(table(figures))
    for violation in result.violations:
        errors.print(violation, style="red", markup=False)
    if result.violations or options.folder:
        errors.print(f"histories and logs are in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if result.violations else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--writers", type=int, default=8, help="client processes that transfer")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--protocol", choices=get_args(ProtocolName), default="six-phase")
    parser.add_argument("--folder", type=Path, help="keep everything there")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args()


def _shown(live: Live, plan: Plan) -> Shown:
    began_s = time.monotonic()

    def show(tally: Tally) -> None:
        shown = Table.grid(padding=(0, 2))
        seconds = time.monotonic() - began_s
        shown.add_row(f"seed {plan.seed}", f"{seconds:.0f} s", tally.doing)
        counts = (f"{name} {count}" for name, count in sorted(tally.outcomes.items()) if count)
        shown.add_row("", "", ", ".join(counts))
        live.update(shown)

    return show


if __name__ == "__main__":
    sys.exit(main())
