"""What a nest computes on the spot: from where it reads, and in which order it must be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekc.ir import expr as ex
from ekc.ir.footprint import Forms, index_of, placed
from ekc.ir.linear import Linear
from ekc.ir.program import Nest, Staging


def serves(nest: Nest, s: Staging, user: Staging) -> bool:
    """Whether what `user` computes on the spot reads the tensor of `s` from there: always where that is
    computed on the spot too, else from a shared copy that stood there before and is filled no deeper."""
    if s.produced_by is not None:
        return True
    before = nest.stagings.index(s) < nest.stagings.index(user)
    return before and s.scope == "shared" and depth(nest, s.at) <= depth(nest, user.at)


def depth(nest: Nest, at: str | None) -> int:
    """How deep a staging sits: -1 outside all loops, else the place of its loop."""
    return -1 if at is None else nest.position(at)


def feeds(nest: Nest, s: Staging, user: Staging) -> bool:
    """Whether one staging is read while another is computed."""
    compute = user.produced_by
    reads = compute is not None and any(x.tensor == s.tensor for x in ex.loads(compute.body))
    return s is not user and reads and serves(nest, s, user)


def misplaced(nest: Nest) -> tuple[Staging, Staging] | None:
    """What is computed on the spot deeper than something that is computed from it, and that."""
    computed = [s for s in nest.stagings if s.produced_by is not None]
    pairs = ((s, user) for s in computed for user in computed if feeds(nest, s, user))
    return next(((s, u) for s, u in pairs if depth(nest, u.at) < depth(nest, s.at)), None)


def sources_first(nest: Nest, stagings: Sequence[Staging]) -> list[Staging]:
    """The stagings in their order, but none before what it reads."""
    left, done = list(stagings), []
    while left:
        ready = next(s for s in left if not any(feeds(nest, x, s) for x in left))
        left.remove(ready)
        done.append(ready)
    return done


def reads_on_the_spot(nest: Nest, s: Staging) -> Forms:
    """Where `s` is read by what is computed on the spot, in loops of the nest and reduction axes."""
    found: Forms = []
    computed = {x.tensor: x for x in nest.stagings if x.produced_by is not None}

    def visit(body: ex.Expr, index: Mapping[str, Linear], user: Staging | None) -> None:
        for load in ex.loads(body):
            forms = index_of(load, index)
            if user is not None and load.tensor == s.tensor and serves(nest, s, user):
                found.append(forms)
            producer = computed.get(load.tensor)
            if producer is not None and producer.produced_by is not None:
                visit(producer.produced_by.body, placed(producer.produced_by, forms), producer)

    visit(nest.compute.body, nest.forms, None)
    return found
