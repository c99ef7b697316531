"""Whether a history is strictly serialisable: whether the graph of its transactions has no cycle.
Each group that cycles bind together is reported once, as the worst that is in it, by a shortest
cycle. After Adya, "Weak Consistency" (1999), and Kingsbury and Alvaro, "Elle" (2020)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import networkx as nx

from tests.history.anomalies import Anomaly, Dependency, Edge, Kind
from tests.history.events import Transaction, Value
from tests.history.views import Account, account_of_lists, account_of_registers

Node = Transaction | int
"""A transaction, or a moment: how many transactions had ended. Moments keep rt edges few."""

Cycle = list[Dependency]
Dependencies = dict[tuple[Transaction, Transaction], list[Dependency]]

ITEMS = (Edge.WW, Edge.WR, Edge.RW)
DATA = (*ITEMS, Edge.PRW)

TRIED = 300
"""Starting points from which a shorter cycle is looked for, once there is one."""


def check_lists(history: Sequence[Transaction]) -> list[Anomaly]:
    return _check(account_of_lists(history))


def check_registers(history: Sequence[Transaction]) -> list[Anomaly]:
    return _check(account_of_registers(history))


def _check(account: Account) -> list[Anomaly]:
    graph = nx.DiGraph()
    graph.add_edges_from((d.before, d.after) for d in dependencies(account))
    graph.add_edges_from(_moments(account.happened))
    bound = [set(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    if not bound:
        return account.anomalies
    place = {node: number for number, part in enumerate(bound) for node in part}
    inside: list[Dependencies] = [defaultdict(list) for _ in bound]
    for d in dependencies(account):
        if d.before in place and place[d.before] == place.get(d.after):
            inside[place[d.before]][d.before, d.after].append(d)
    parts = zip(inside, bound, strict=True)
    return [*account.anomalies, *(_worst(known, graph.subgraph(part)) for known, part in parts)]


def dependencies(account: Account) -> Iterator[Dependency]:
    writers = account.writers
    readers: dict[tuple[str, Value], list[tuple[Transaction, Edge]]] = defaultdict(list)
    for view in account.views:
        last = view.versions[-1] if view.versions else None
        edge = Edge.PRW if view.is_missing else Edge.RW
        readers[view.key, last].append((view.reader, edge))
        writer = writers.get((view.key, last))
        if writer is not None and writer is not view.reader:
            yield Dependency(writer, view.reader, Edge.WR, view.key, last, last)
    for key, earlier, later in account.successions:
        after = writers[key, later]
        before = writers.get((key, earlier))
        if before is not None and before is not after:
            yield Dependency(before, after, Edge.WW, key, earlier, later)
        for reader, edge in readers[key, earlier]:
            if reader is not after:
                yield Dependency(reader, after, edge, key, earlier, later)


def _moments(happened: Iterable[Transaction]) -> Iterator[tuple[Node, Node]]:
    """Lead from each transaction over the moments of ends to all later ones, by few edges."""
    events: list[tuple[int, bool, Transaction]] = []
    for t in happened:
        events.append((t.start, False, t))
        if t.known_end is not None:
            events.append((t.known_end, True, t))
    moment = 0
    for _, is_end, t in sorted(events, key=lambda event: event[:2]):
        if is_end:
            yield t, moment + 1
            yield moment, moment + 1
            moment += 1
        else:
            yield moment, t


def _worst(known: Dependencies, part: nx.DiGraph) -> Anomaly:
    looks: list[tuple[Kind, Callable[[], Cycle | None]]] = [
        (Kind.G0, partial(_shortest, _only(known, Edge.WW), known)),
        (Kind.G1C, partial(_shortest, _only(known, Edge.WW, Edge.WR), known)),
        (Kind.LOST_UPDATE, partial(_lost_update, known)),
        (Kind.G_SINGLE, partial(_single, known)),
        (Kind.G2_ITEM, partial(_shortest, _only(known, *ITEMS), known, ITEMS)),
        (Kind.G2, partial(_shortest, _only(known, *DATA), known)),
        (Kind.REAL_TIME, partial(_overtaken, known)),
        (Kind.REAL_TIME, partial(_shortest, _weighed(part), known)),
    ]
    for kind, look in looks:
        if cycle := look():
            return Anomaly(kind, cycle=tuple(cycle))
    raise AssertionError("transactions that are bound together have a cycle")


def _only(known: Dependencies, *edges: Edge) -> nx.DiGraph:
    graph = nx.DiGraph()
    for pair, found in known.items():
        if any(d.edge in edges for d in found):
            graph.add_edge(*pair, weight=1)
    return graph


def _weighed(part: nx.DiGraph) -> nx.DiGraph:
    graph = nx.DiGraph()
    for before, after in part.edges:
        graph.add_edge(before, after, weight=int(not isinstance(before, int)))
    return graph


def _shortest(graph: nx.DiGraph, known: Dependencies, edges: Sequence[Edge] = DATA) -> Cycle | None:
    best: list[Node] | None = None
    for component in nx.strongly_connected_components(graph):
        nodes = [node for node in component if not isinstance(node, int)]
        if len(component) < 2:
            continue
        inner = graph.subgraph(component)
        for node in sorted(nodes, key=lambda t: t.start)[:TRIED]:
            limit = None if best is None else _length(best) - 1
            found = _through(inner, node, limit)
            best = found if found and (limit is None or _length(found) <= limit) else best
            if best is not None and _length(best) == 2:
                return _told(best, known, edges)
    return None if best is None else _told(best, known, edges)


def _through(graph: nx.DiGraph, node: Node, limit: int | None) -> list[Node] | None:
    lengths, paths = nx.single_source_dijkstra(graph, node, cutoff=limit)
    ends = [n for n in graph.predecessors(node) if n in lengths]
    if not ends:
        return None
    last = min(ends, key=lambda n: lengths[n] + graph.edges[n, node]["weight"])
    return [*paths[last], node]


def _length(cycle: list[Node]) -> int:
    return sum(not isinstance(node, int) for node in cycle) - 1


def _lost_update(known: Dependencies) -> Cycle | None:
    for (one, two), found in known.items():
        for d in found:
            back = [
                b for b in known.get((two, one), ()) if b.key == d.key and b.edge is not Edge.WR
            ]
            if d.edge is Edge.RW and back and _both_write(d):
                return [d, back[0]]
    return None


def _both_write(d: Dependency) -> bool:
    return all(any(w.key == d.key for w in t.writes()) for t in (d.before, d.after))


def _single(known: Dependencies) -> Cycle | None:
    """A cycle with one edge of a reader."""
    graph = _only(known, Edge.WW, Edge.WR)
    place = _places(_only(known, *DATA))
    best: Cycle | None = None
    tried = 0
    for (reader, writer), found in known.items():
        rw = next((d for d in found if d.edge in (Edge.RW, Edge.PRW)), None)
        if rw is None or place[reader] != place[writer] or writer not in graph:
            continue
        limit = None if best is None else len(best) - 2
        lengths, paths = nx.single_source_dijkstra(graph, writer, cutoff=limit)
        if reader in lengths:
            best = [rw, *_told(paths[reader], known, (Edge.WW, Edge.WR))]
        tried += best is not None
        if best is not None and (len(best) == 2 or tried > TRIED):
            break
    return best


def _overtaken(known: Dependencies) -> Cycle | None:
    for (before, after), found in known.items():
        if after.known_end is not None and after.known_end < before.start:
            return [found[0], Dependency(after, before, Edge.RT)]
    return None


def _places(graph: nx.DiGraph) -> dict[Node, int]:
    parts = enumerate(nx.strongly_connected_components(graph))
    return {node: number for number, part in parts for node in part}


def _told(path: list[Node], known: Dependencies, edges: Sequence[Edge] = DATA) -> Cycle:
    steps: Cycle = []
    real = [node for node in path if not isinstance(node, int)]
    for before, after in pairwise(real):
        found = [d for edge in edges for d in known.get((before, after), ()) if d.edge is edge]
        steps.append(found[0] if found else Dependency(before, after, Edge.RT))
    return steps
