"""Where the emitted text touches memory, and what a warp's addresses look like there.

For each memory statement the index arithmetic of the text is evaluated for all lanes of some
sampled warps, and the 32-byte sectors and shared-memory wavefronts are counted. Nothing here is a
formula about coalescing or bank conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import AccessSite, Footprint
from ekc.ir.access import Access
from ekc.ir.footprint import block_elements, global_reads, global_writes
from ekc.ir.issue import issued, joined_copy, merged, written_out
from ekc.ir.linear import value
from ekc.ir.region import Region
from ekc.ir.tree import (
    ComputeNode,
    InitNode,
    Kernel,
    LoopNode,
    Node,
    StageNode,
    WriteNode,
)
from ekc.ir.warp import WARP, warp_requests

_SAMPLES = 16
_SECTOR = 32
_BANKS = 32


def access_sites(kernel: Kernel) -> tuple[AccessSite, ...]:
    """Every memory statement of a kernel, on chip and off."""
    return tuple(_Sampler(kernel).walk(kernel.body, 1))


def footprints(kernel: Kernel) -> tuple[Footprint, ...]:
    """What one block touches of each global tensor, and over which block loops that changes."""
    nest = kernel.nest
    reads = [(tensor, "load", forms) for tensor, forms in global_reads(nest).items()]
    found = []
    for tensor, kind, forms in (*reads, (nest.compute.output.name, "store", global_writes(nest))):
        spec = kernel.tensors[tensor]
        block_bytes = min(float(block_elements(forms, nest)) * spec.dtype.bytes, float(spec.bytes))
        used = {name for read in forms for form in read for name in form.variables()}
        loops = tuple((int(x.extent), x.name in used) for x in kernel.block_loops)
        found.append(Footprint(tensor, kind, spec.bytes, block_bytes, loops))
    return tuple(found)


class _Sampler:
    """Draws warps and loop iterations once, then evaluates every access on them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.threads = int(kernel.threads)
        self.warps = -(-self.threads // WARP)
        self.random = np.random.default_rng(0)
        warp = self._spread(self.warps)
        self.thread = warp[:, None] * WARP + np.arange(WARP)[None, :]
        self.active = self.thread < self.threads
        self.env: dict[str, Any] = {}
        self.path: list[LoopNode] = []
        self._digits(kernel.thread_loops, self.thread)
        self._digits(kernel.block_loops, self._spread(int(kernel.blocks))[:, None])
        for loop in kernel.nest.loops:
            if loop.is_serial:
                self.env[loop.name] = self._spread(int(loop.extent))[:, None]

    def _spread(self, extent: int) -> NDArray[np.int64]:
        """First, last and random values of an index."""
        drawn = self.random.integers(0, extent, _SAMPLES)
        drawn[0], drawn[-1] = 0, extent - 1
        return self.random.permutation(drawn)

    def _digits(self, loops: Any, number: NDArray[Any]) -> None:
        for loop in loops:
            self.env[loop.name] = number % loop.extent
            number = number // loop.extent

    def walk(self, nodes: Sequence[Node], trips: float) -> Iterator[AccessSite]:
        """The sites below some nodes; each node runs `trips` times in every thread."""
        for node in nodes:
            match node:
                case LoopNode():
                    self.path.append(node)
                    yield from self.walk(node.body, trips * int(node.loop.extent))
                    self.path.pop()
                case StageNode() if node.buffer.scope == "shared":
                    yield from self._cooperative(node, trips)
                case StageNode():
                    yield from self._private(node, trips)
                case ComputeNode():
                    yield from self._compute(node, trips)
                case InitNode() if node.buffer is None:
                    env = self._segments(node.region, None, 1)
                    yield self._site(node.target, "store", 1, trips * _size(node.region), env)
                case WriteNode():
                    env = self._segments(node.region, node.vector_segment, int(node.vector))
                    count = trips * _size(node.region) / int(node.vector)
                    yield self._site(
                        node.target, "store", int(node.vector), count, env, lanes=[x.name for x in node.lanes]
                    )
                case _:
                    pass

    def _cooperative(self, node: StageNode, trips: float) -> Iterator[AccessSite]:
        vector, size = int(node.staging.vector), _size(node.buffer.region)
        moves = size // vector
        rounds = -(-moves // self.threads)
        number = self._spread(rounds)[:, None] * self.threads + self.thread
        env = self.env | self._mixed_radix(node.buffer.region, number * vector)
        here = self.active & (number < moves)
        count = trips * float(warp_requests(moves, self.threads)) / self.warps
        yield from self._copied(node, vector, count, env, here)

    def _copied(
        self, node: StageNode, vector: int, count: float, env: dict[str, Any], here: Any
    ) -> Iterator[AccessSite]:
        if node.produced is None:
            yield self._site(node.source, "load", vector, count, env, here)
        for access in (node.produced or {}).values():
            yield self._site(access, "load", 1, count, env, here)
        if node.buffer.scope != "shared":
            return
        whole = vector == 1 or node.buffer.fastest == node.vector_segment
        width, times = (vector, 1) if whole else (1, vector)
        address = np.broadcast_to(value(node.address, env), self.thread.shape)
        yield self._shared(node.buffer, node.staging.tensor, "store", address, width, count * times, here)

    def _mixed_radix(self, region: Region, number: NDArray[Any]) -> dict[str, Any]:
        env = {}
        for i in reversed(range(len(region.segments))):
            extent = int(region.segments[i].extent)
            env[f"#{i}"] = number % extent
            number = number // extent
        return env

    def _private(self, node: StageNode, trips: float) -> Iterator[AccessSite]:
        joined = int(joined_copy(node))
        env = self._segments(node.buffer.region, node.vector_segment, int(node.staging.vector))
        yield from self._copied(node, joined, trips * _size(node.buffer.region) / joined, env, self.active)

    def _segments(self, region: Region, segment: int | None, vector: int) -> dict[str, Any]:
        env = dict(self.env)
        for i, s in enumerate(region.segments):
            step = vector if i == segment else 1
            env[f"#{i}"] = self._spread(max(1, int(s.extent) // step))[:, None] * step
        return env

    def _compute(self, node: ComputeNode, trips: float) -> Iterator[AccessSite]:
        """Reads and updates straight from memory; the compiler keeps an element while no loop moves it."""
        for access in node.reads.values():
            if access.buffer is None or access.buffer.scope == "shared":
                width = int(merged(access, written_out(self.path)))
                count = trips * float(issued(self.path, access, node.nest)) / width
                yield self._site(access, "load", width, count, self.env)
        if node.target.buffer is None:
            kept = trips * float(issued(self.path, node.target, node.nest))
            yield self._site(node.target, "store", 1, kept, self.env)

    def _site(
        self,
        access: Access,
        kind: str,
        vector: int,
        count: float,
        env: dict[str, Any],
        here: Any = None,
        lanes: Any = (),
    ) -> AccessSite:
        """`count` executions per thread of an access of `vector` elements."""
        here = self.active if here is None else here
        shape = self.thread.shape
        for lane in lanes:
            here = here & (np.broadcast_to(env[lane], shape) == 0)
        # Joined reads start at the first of the joined elements, wherever the loop variable was drawn.
        address = np.broadcast_to(value(access.address, env), shape) // vector * vector
        if access.buffer is not None:
            return self._shared(access.buffer, access.spec.name, kind, address, vector, count, here)
        for g in access.guards:
            at = np.broadcast_to(value(g.form, env), shape)
            here = here & (at >= 0) & (at < g.extent)
        itemsize = access.spec.dtype.bytes
        sectors = _mean(
            _distinct(address[i][here[i]] * itemsize, itemsize * vector, _SECTOR) for i in range(_SAMPLES)
        )
        requests = count * self.warps
        return AccessSite(
            access.spec.name, access.spec.name, "global", kind, itemsize * vector, requests, sectors, 0.0
        )

    def _shared(
        self, buffer: Any, tensor: str, kind: str, address: NDArray[Any], vector: int, count: float, here: Any
    ) -> AccessSite:
        itemsize = buffer.dtype.bytes
        waves = _mean(_conflicts(address[i][here[i]] * itemsize, itemsize * vector) for i in range(_SAMPLES))
        return AccessSite(
            tensor, buffer.name, "shared", kind, itemsize * vector, count * self.warps, 0.0, waves
        )


def _size(region: Region) -> int:
    return int(region.size)


def _mean(counts: Iterator[int]) -> float:
    """The mean over samples in which any lane was active."""
    seen = [c for c in counts if c]
    return float(np.mean(seen)) if seen else 0.0


def _units(address: NDArray[Any], width: int, unit: int) -> NDArray[Any]:
    """The distinct aligned units of memory that accesses of `width` bytes touch."""
    spread = np.arange(0, max(width, 1), min(unit, width))
    return np.unique((address[:, None] + spread[None, :]) // unit)


def _distinct(address: NDArray[Any], width: int, unit: int) -> int:
    return len(_units(address, width, unit)) if address.size else 0


def _conflicts(address: NDArray[Any], width: int) -> int:
    """Wavefronts of one request: the most distinct words that any of the 32 banks must serve."""
    if not address.size:
        return 0
    return int(np.bincount(_units(address, width, 4) % _BANKS).max())
