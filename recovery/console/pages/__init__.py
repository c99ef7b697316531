"""The pages by their addresses: what is looked at by GET, done by POST, and kept up to date."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from recovery.console.live import Part
from recovery.console.pages import doctor, fsck, keys, leases, locks, overview, transactions

Look = Callable[[Request], Response]
Action = Callable[[Request, Mapping[str, str]], Response]
Endpoint = Callable[[Request], Awaitable[Response]]

LOOKS: Mapping[str, Look] = {
    "/": overview.show_overview,
    "/transactions": transactions.show_transactions,
    "/key": keys.show_key,
    "/transaction": transactions.show_transaction,
    "/locks": locks.show_locks_page,
    "/leases": leases.show_leases_page,
    "/fsck": fsck.show_fsck,
    "/fsck/repair": fsck.show_confirmation,
    "/doctor": doctor.show_doctor,
}
ACTIONS: Mapping[str, Action] = {
    "/fsck": fsck.start_check,
    "/fsck/cancel": fsck.cancel_job,
    "/fsck/repair": fsck.start_repair,
    "/doctor": doctor.run_doctor,
}
PARTS: Mapping[str, Part] = {
    "overview": overview.render_overview,
    "locks": locks.render_locks,
    "leases": leases.render_leases,
    "fsck": fsck.render_fsck,
}
