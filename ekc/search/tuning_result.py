"""The result of `ekc.tune`: its data, and what a user does with it (compile, export, print)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ekc.codegen.export import export
from ekc.runtime.kernel import Kernel, compile
from ekc.search.data.result import TuningData
from ekc.search.summary import format_summary


@dataclass(frozen=True)
class TuningResult(TuningData):
    """The outcome of `ekc.tune`."""

    def compile(self, name: str | None = None) -> Kernel:
        """Compile the best schedule to a callable kernel. `name` replaces the operator's in its functions."""
        return compile(self.best.schedule, arch=self.device.arch, name=name)

    def export(self, folder: str | Path, name: str | None = None) -> tuple[Path, ...]:
        """Write the best kernel as `.cu`, header, JSON and CMake function. Returns the paths.

        `name` replaces the operator's in files and functions. Two shapes of one operator in one folder need
        different names.
        """
        kernel = self.compile(name)
        return export(kernel.compiled, self.best.schedule, folder, provenance=self.provenance())

    def summary(self) -> str:
        """Format the result as text: a table of best, fastest and baseline, and notes on the figures."""
        return format_summary(self)
