"""Find the outcome of commits whose answers were lost, by the names of their requests."""

from __future__ import annotations

import random
from collections.abc import Callable

from txn.backoff import Backoff
from txn.clock import Clock
from txn.errors import CommitOutcomeUnknown, MaybeApplied, StoreError, TxnError
from txn.request import Committed, Outcome
from txn.service.messages import UNKNOWN_KIND, name_part
from txn.service.store import RemoteService

TRIES = 6
SETTLING = Backoff(first_ms=20, longest_ms=640)

Settled = tuple[Outcome, Committed | None]


class Settler:
    def __init__(self, service: RemoteService, clock: Clock, rng: random.Random) -> None:
        self._service = service
        self._clock = clock
        self._rng = rng

    def find_committed(self, name: bytes, sent_ms: int, until_ms: int) -> Committed | None:
        """Search for a request's transactions; return None if it is not known to be committed."""

        def ask_once(ago_ms: int, within_ms: int) -> list[Settled]:
            within = {"within_ms": within_ms, "withinMs": within_ms}
            return [self._service.call("settle", name, ago_ms, repeat=True, **within)]

        (done,) = self._look_for(ask_once, sent_ms, until_ms) or [None]
        return done

    def find_all_committed(
        self, name: bytes, sent_ms: int, count: int, until_ms: int, lost: MaybeApplied
    ) -> list[Committed | TxnError]:
        """Search for the requests of a commitMany; the outcome of the others is unknown."""

        def ask_once(ago_ms: int, within_ms: int) -> list[Settled]:
            within = {"within_ms": within_ms, "withinMs": within_ms}
            found: list[Settled]
            found = self._service.call("settleMany", name, count, ago_ms, repeat=True, **within)
            if len(found) != count:
                raise MaybeApplied(UNKNOWN_KIND)
            return found

        found = self._look_for(ask_once, sent_ms, until_ms) or [None] * count
        return [
            done or CommitOutcomeUnknown(name_part(name, number), lost)
            for number, done in enumerate(found)
        ]

    def _look_for(
        self,
        ask: Callable[[int, int], list[Settled]],
        sent_ms: int,
        until_ms: int,
    ) -> list[Committed | None]:
        """Ask for the outcome of requests. Repeat while one is in progress or the server is away;
        otherwise only a few times, since they may be in flight or between attempts."""
        found: list[Settled] = []
        seen = 0
        for number in SETTLING.tries(self._clock, self._rng, due_ms=until_ms):
            now_ms = self._clock.monotonic_ms()
            if now_ms >= until_ms:
                break
            try:
                found = ask(now_ms - sent_ms, until_ms - now_ms)
                is_open = any(outcome is Outcome.UNDECIDED for outcome, _ in found)
            except TxnError as error:
                is_open = isinstance(error, StoreError)
            if found and all(done for _, done in found):
                break
            if is_open:
                seen = number
            if number >= seen + TRIES:
                break
        return [done for _, done in found]
