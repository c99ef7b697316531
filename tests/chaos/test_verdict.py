"""The judge is judged: on hand-made endings, one for each thing that must not happen."""

import pytest

from tests.chaos.bank import ACCOUNTS, BALANCE, FOUNDING, Money
from tests.chaos.history import History, Operation
from tests.chaos.verdict import Ending, judge, leave_out_stale
from txn import Outcome

pytestmark = pytest.mark.fast

A, B, C, *OTHERS = ACCOUNTS
FIRST = Money(BALANCE, FOUNDING, 1)


class World:
    """A bank by hand: two transfers, from A to B and then from B to C, and a read of all."""

    def __init__(self) -> None:
        self.history = History()
        self.accounts: dict[str, Money | None] = dict.fromkeys(ACCOUNTS, FIRST)
        self.receipts: dict[str, tuple[int, str, str, int]] = {}
        self.outcomes: dict[str, dict[str, Outcome]] = {}
        self.one = self.transfer("one", A, B, 10, start_ns=10)
        self.two = self.transfer("two", B, C, 20, start_ns=30)
        self.seen = self.read("all", start_ns=50)

    def transfer(self, name: str, payer: str, payee: str, amount: int, start_ns: int) -> Operation:
        reads = {each: self.accounts[each] for each in (payer, payee)}
        timestamp = 100 + start_ns
        for account, by in ((payer, -amount), (payee, amount)):
            before = self.accounts[account]
            assert before is not None
            self.accounts[account] = Money(before.balance + by, name, timestamp)
        writes = {each: self.accounts[each] for each in (payer, payee)}
        self.receipts[name] = (timestamp, payer, payee, amount)
        self.outcomes[name] = {f"t-{name}": Outcome.COMMITTED}
        operation = Operation(
            name, "transfer", start_ns, start_ns + 5, "committed", reads, writes, amount
        )
        operation.payer, operation.payee = payer, payee
        operation.transaction, operation.timestamp = f"t-{name}", timestamp
        self.history.operations[name] = operation
        return operation

    def read(self, name: str, start_ns: int) -> Operation:
        operation = Operation(name, "read", start_ns, start_ns + 5, reads=dict(self.accounts))
        self.history.operations[name] = operation
        return operation

    def lose(self, operation: Operation) -> None:
        """Take away all traces of a transfer but its client's."""
        del self.receipts[operation.name]
        self.outcomes[operation.name] = {f"t-{operation.name}": Outcome.ABORTED}
        self.accounts |= operation.reads

    def judge(self) -> str:
        return "\n".join(judge(self.history, Ending(self.accounts, self.receipts, self.outcomes)))


def test_a_good_history_has_nothing_against_it() -> None:
    """A judge that cries wolf is not listened to."""
    assert World().judge() == ""


def test_a_killed_client_s_transfer_may_be_either() -> None:
    """Nobody was told, so both are right."""
    there, gone = World(), World()
    for world in (there, gone):
        world.two.outcome, world.two.transaction, world.two.timestamp = "unknown", None, None
    gone.lose(gone.two)
    del gone.history.operations["all"]
    assert there.judge() == ""
    assert gone.judge() == ""


def test_a_lost_commit_is_seen() -> None:
    """It is the promise that everything is about."""
    world = World()
    world.lose(world.two)
    assert "two was reported as committed and is lost" in world.judge()


def test_an_abort_that_appears_is_seen() -> None:
    """Its client has done the same again, and pays twice."""
    world = World()
    world.two.outcome = "aborted"
    assert "two was reported as aborted and is there" in world.judge()


def test_a_wrong_total_is_seen() -> None:
    """Money is neither made nor lost, at no instant."""
    world = World()
    world.seen.reads |= {A: FIRST}  # type: ignore[operator]
    assert "read all saw a total of 100010" in world.judge()


def test_an_outcome_that_is_not_so_is_seen() -> None:
    """engine.outcome is what clients go by."""
    world = World()
    world.outcomes["two"] = {"t-two": Outcome.ABORTED}
    assert "two has 0 committed transactions" in world.judge()


def test_an_outcome_that_stays_open_is_seen() -> None:
    """After fsck nothing is left undecided."""
    world = World()
    world.outcomes["two"]["t-again"] = Outcome.UNDECIDED
    assert "t-again of transfer two is undecided" in world.judge()


def test_a_transfer_that_happened_twice_is_seen() -> None:
    """One transfer, one transaction."""
    world = World()
    world.outcomes["two"]["t-again"] = Outcome.COMMITTED
    assert "two has 2 committed transactions" in world.judge()


def test_a_lost_update_is_seen() -> None:
    """Two transfers that both replaced the same version: one of them is undone."""
    world = World()
    world.two.reads |= {B: FIRST}  # type: ignore[operator]
    assert f"transfer two on {B} had not seen (1010, 'one')" in world.judge()


def test_a_read_of_what_was_never_committed_is_seen() -> None:
    """An aborted or a later replaced value must not be read."""
    world = World()
    world.seen.reads |= {A: Money(990, "nobody", 110)}  # type: ignore[operator]
    assert "which nobody committed" in world.judge()


def test_a_fractured_read_is_seen() -> None:
    """It saw the second half of a transfer and not the first."""
    world = World()
    world.seen.start_ns = 1
    world.seen.reads |= {A: FIRST}  # type: ignore[operator]
    assert "not strictly serialisable" in world.judge()


def test_a_stale_read_is_seen() -> None:
    """It is a fine snapshot, of a time before the read began."""
    world = World()
    world.seen.reads |= {B: world.one.writes[B], C: FIRST}  # type: ignore[operator]
    assert "not strictly serialisable: real-time violation: all < two < all" in world.judge()
    world.seen.start_ns = world.one.start_ns
    assert world.judge() == ""


def test_a_balance_past_its_receipts_is_seen() -> None:
    """Somebody moved money without leaving a trace."""
    world = World()
    world.accounts |= {A: Money(980, "one", 110), C: Money(1030, "two", 130)}
    assert f"{C} ends as" in world.judge()
    assert f"{A} ends as Money(balance=980, writer='one', timestamp=110), and its" in world.judge()


def test_a_finding_that_fsck_cannot_repair_is_seen() -> None:
    """Clients that keep to the protocol leave none."""
    world = World()
    world.history.others["fsck"].append({"op": "f-1", "wrong": ["Finding(foreign-version)"]})
    assert "fsck f-1 found Finding(foreign-version)" in world.judge()


def test_an_emptied_account_is_ordered_where_it_can_be() -> None:
    """Empty accounts look alike: the one that was read is told by the times, or not at all."""
    world = World()
    world.two.writes |= {B: None}  # type: ignore[operator]
    world.accounts[B] = None
    three = world.transfer("three", A, C, 0, start_ns=60)
    world.read("later", start_ns=70)
    world.history.operations["later"].reads |= {C: three.reads[C]}  # type: ignore[operator]
    assert "not strictly serialisable" in world.judge()


def test_reads_through_gateways_beside_a_server_that_stood_still_are_left_out() -> None:
    """These alone: what the native store reads then is judged, and so is what anybody writes."""
    world = World()
    early, late = world.read("w1.1-1r", start_ns=60), world.read("w1.1-2r", start_ns=90)
    native = world.read("w0.1-1r", start_ns=70)
    during = world.read("w1.1-3r", start_ns=70)
    for fault, start_ns, end_ns in (("pause region2", 56, 80), ("kill region1", 85, 99)):
        line = {"op": fault, "kind": "fault", "start_ns": start_ns, "end_ns": end_ns}
        world.history.add({**line, "down_s": 10e-9})
    assert leave_out_stale(world.history, ["w1"]) == [during]
    assert world.history.reads() == [world.seen, early, late, native]
    assert world.judge() == ""
