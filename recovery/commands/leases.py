"""`txn leases`: the leases of tables and partitions; grab and drop them by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from recovery.commands import common
from recovery.commands.common import Duration, time_option
from recovery.commands.locks import ExclusiveOption, PathArgument, WaitOption, make_requests
from recovery.opening import SQLITE, require_leases
from recovery.text import count_text, duration_text, time_text
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.leases import Lease, LeaseAlreadyExistsError, LeaseNotFoundError, open_leases
from txn.leases.opening import default_url, user_url

if TYPE_CHECKING:
    from txn.leases.service import LeaseService

REFUSALS = (LeaseAlreadyExistsError, LeaseNotFoundError)

app = typer.Typer(help="Look at leases, grab, extend and drop them.", no_args_is_help=True)

MaybeLeasesOption = Annotated[
    str | None,
    typer.Option(
        "--leases",
        envvar="TXN_LEASES",
        metavar="URL",
        help="The database of leases: postgresql+psycopg://host/name or sqlite:////path.",
    ),
]
OfLeaseArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Objects of the lease; by default, all of them."),
]
IdArgument = Annotated[int, typer.Argument(metavar="LEASE", help="The id of the lease.")]


@app.command("ls")
def ls(
    within: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH", help="Only leases on these objects, within and around them."
        ),
    ] = None,
    *,
    leases: MaybeLeasesOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """List the leases that have not ended, in the order of their objects.

    Example: txn leases ls sales/orders
    """
    with open_service(leases) as service:
        show_leases(service.list_lease(within or ()), service.now(), as_json)


@app.command("grab")
def grab(
    paths: PathArgument,
    *,
    leases: MaybeLeasesOption = None,
    exclusive: ExclusiveOption = False,
    length: Annotated[
        Duration, time_option("--for", "How long the lease lasts, such as 90s or 2h.")
    ],
    wait: WaitOption = None,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The owner of the lease; by default, the login name."),
    ] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Lease all of these objects or none, and print the lease's id.

    Example: txn leases grab sales/orders/day=1 --for 2h --wait 30s
    """
    wanted = make_requests(paths, exclusive)
    with open_service(leases, is_new=True) as service, common.report_refusal(*REFUSALS):
        lease_id = service.grab_lease(wanted, length / 1000, (wait or 0) / 1000, user=user)
    common.print_result(as_json, {"lease_id": lease_id}, str(lease_id))


@app.command("extend")
def extend(
    lease: IdArgument,
    paths: OfLeaseArgument = None,
    *,
    leases: MaybeLeasesOption = None,
    length: Annotated[
        Duration | None,
        time_option("--for", "How long from now; by default, as long as it was grabbed for."),
    ] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Let a lease end later, and print when.

    Example: txn leases extend 17 --for 1h
    """
    duration_s = None if length is None else length / 1000
    with open_service(leases) as service, common.report_refusal(*REFUSALS):
        end = service.extend_lease(lease, paths or (), duration_s)
    document = {"lease_id": lease, "end_utc": end.isoformat()}
    common.print_result(as_json, document, f"lease {lease} ends at {_moment(end)}")


@app.command("drop")
def drop(
    lease: IdArgument,
    paths: OfLeaseArgument = None,
    *,
    leases: MaybeLeasesOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Give a lease back, or some of its objects.

    Example: txn leases drop 17
    """
    with open_service(leases) as service:
        count = service.drop_lease(lease, paths or ())
    show_dropped(f"lease {lease}", count, as_json)


@app.command("force-drop")
def force_drop(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Objects: leases on them and within them are dropped."),
    ] = None,
    *,
    leases: MaybeLeasesOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Drop every lease.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Drop leases of any user, without asking their holders.

    Example: txn leases force-drop sales/orders
    """
    if bool(paths) is everything:
        raise InvalidRequestError("name what to drop, or say --all", paths=paths)
    with open_service(leases) as service:
        count = service.force_drop_lease(paths or ())
    show_dropped(", ".join(paths or ()), count, as_json)


@app.command("where")
def where(*, leases: MaybeLeasesOption = None, as_json: common.JsonOption = False) -> None:
    """Print the database of leases that commands use, without its password.

    It is what --leases or TXN_LEASES names. Otherwise it is the machine's, or else the user's.

    Example: txn leases where
    """
    url = _choose_leases(leases)
    with require_extra("leases"):
        from txn.leases.databases import hide_password  # noqa: PLC0415
        from txn.leases.opening import parse_url  # noqa: PLC0415
    name = hide_password(parse_url(url))
    common.print_result(as_json, {"url": name}, name)


@contextmanager
def open_service(url: str | None, *, is_new: bool = False) -> Iterator[LeaseService]:
    """Open the lease service; a file must exist unless `is_new` is true."""
    if url is not None and not is_new:
        require_leases(url)
    with open_leases(_choose_leases(url)) as service:
        yield service


def _choose_leases(url: str | None) -> str:
    """Return the URI of the leases; warn if it is one user's, which does not keep out others."""
    if url is not None:
        return url
    found = default_url()
    if found == user_url():
        name = found.removeprefix(SQLITE)
        common.print_note(f"these leases keep out no other user: {name}")
    return found


def show_leases(leases: Sequence[Lease], now: datetime, as_json: bool) -> None:
    if as_json:
        for lease in leases:
            times = {"start_utc": lease.start_utc.isoformat(), "end_utc": lease.end_utc.isoformat()}
            common.print_json({"path": str(lease.path)} | asdict(lease) | times)
        return
    rows = []
    for lease in leases:
        left_ms = int((lease.end_utc - now).total_seconds() * 1000)
        row = [str(lease.path), lease.request.mode.name.lower(), str(lease.lease_id), lease.user]
        row += [_moment(lease.start_utc), _moment(lease.end_utc), duration_text(max(0, left_ms))]
        rows.append(row)
    common.print_table(("object", "mode", "lease", "user", "since", "until", "left"), rows)


def show_dropped(name: str, count: int, as_json: bool) -> None:
    """Print how many objects were released; exit with code 1 if none. name: empty for all."""
    what = count_text(count, "claim") if count else "no claim"
    line = f"dropped {what}" + (f" of {name}" if name else "")
    common.print_result(as_json, {"dropped": count}, line)
    if not count:
        raise typer.Exit(common.FOUND)


def _moment(at: datetime) -> str:
    return time_text(round(at.timestamp() * 1000))
