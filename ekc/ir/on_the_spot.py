"""What a nest computes on the spot: from where it reads, and in which order it must be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekc.ir import expr as ex
from ekc.ir.footprint import IndexForms, map_axes_to_element, to_affine_index
from ekc.ir.linear import AffineForm
from ekc.ir.program import Nest, Staging


def can_use_staging(nest: Nest, staging: Staging, user: Staging) -> bool:
    """Whether what `user` computes on the spot reads the tensor of `s` from there: always where that is
    computed on the spot too, else from a shared copy that stood there before and is filled no deeper."""
    if staging.producer is not None:
        return True
    before = nest.stagings.index(staging) < nest.stagings.index(user)
    return (
        before
        and staging.scope == "shared"
        and find_staging_depth(nest, staging.at) <= find_staging_depth(nest, user.at)
    )


def find_staging_depth(nest: Nest, at: str | None) -> int:
    """How deep a staging sits: -1 outside all loops, else the place of its loop."""
    return -1 if at is None else nest.find_position(at)


def has_dependence(nest: Nest, staging: Staging, user: Staging) -> bool:
    """Whether one staging is read while another is computed."""
    compute = user.producer
    reads = compute is not None and any(x.tensor == staging.tensor for x in ex.find_loads(compute.body))
    return staging is not user and reads and can_use_staging(nest, staging, user)


def find_misplaced_producer(nest: Nest) -> tuple[Staging, Staging] | None:
    """What is computed on the spot deeper than something that is computed from it, and that."""
    computed = [s for s in nest.stagings if s.producer is not None]
    pairs = ((s, user) for s in computed for user in computed if has_dependence(nest, s, user))
    return next(
        ((s, u) for s, u in pairs if find_staging_depth(nest, u.at) < find_staging_depth(nest, s.at)), None
    )


def order_by_dependence(nest: Nest, stagings: Sequence[Staging]) -> list[Staging]:
    """The stagings in their order, but none before what it reads."""
    left, done = list(stagings), []
    while left:
        ready = next(s for s in left if not any(has_dependence(nest, x, s) for x in left))
        left.remove(ready)
        done.append(ready)
    return done


def find_fused_reads(nest: Nest, staging: Staging) -> IndexForms:
    """Where `s` is read by what is computed on the spot, in loops of the nest and reduction axes."""
    found: IndexForms = []
    computed = {x.tensor: x for x in nest.stagings if x.producer is not None}

    def visit(body: ex.Expr, index: Mapping[str, AffineForm], user: Staging | None) -> None:
        for load in ex.find_loads(body):
            forms = to_affine_index(load, index)
            if user is not None and load.tensor == staging.tensor and can_use_staging(nest, staging, user):
                found.append(forms)
            producer = computed.get(load.tensor)
            if producer is not None and producer.producer is not None:
                visit(producer.producer.body, map_axes_to_element(producer.producer, forms), producer)

    visit(nest.compute.body, nest.index_forms, None)
    return found
