"""The result of `ekc.tune_model`: its data, and what a user does with it (export, report, print)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ekc.codegen.library.build import build_library
from ekc.codegen.library.function_plan import name_layers
from ekc.codegen.library.kernels import Bundle
from ekc.codegen.library.legal_names import check_bundle_name, make_library_name
from ekc.codegen.library.write import write_bundle
from ekc.display import format_line, shorten
from ekc.search.tuning_result import make_board, make_choice
from ekc.search.whole_model.model_data import ModelData
from ekc.search.whole_model.model_summary import format_model_html, format_model_summary, format_total

if TYPE_CHECKING:
    from ekc.report.page import ReportPage


@dataclass(frozen=True, repr=False)
class ModelResult(ModelData):
    """The outcome of `ekc.tune_model`."""

    def summary(self) -> str:
        """Format the result as text: a table of the layers, the sums of the model, and notes."""
        return format_model_summary(self)

    def make_bundle(self, name: str | None = None) -> Bundle:
        """Make the C++ library of the best kernels, and of the fastest where these are others. Functions have
        the names of the layers, whatever layers have a kernel. Raises `InvalidInput` for the names."""
        name = make_library_name(self.model.name) if name is None else check_bundle_name(name)
        choices = {}
        for result in self.results:
            best = make_choice(result.best, provenance=result.provenance())
            if result.best.schedule != result.fastest.schedule:
                fastest = make_choice(result.fastest, "latency")
                choices[result.op.digest] = [fastest, replace(best, role="energy")]
            else:
                choices[result.op.digest] = [best]
        return build_library(name, name_layers(self.model.layers), choices, make_board(self.device))

    def export(self, folder: str | Path, name: str | None = None, *, cubin: bool = False) -> tuple[Path, ...]:
        """Write the kernels of all layers as a C++ library: a project for CMake and make. Returns the paths,
        CUDA source first.

        name: of the library; by default one made of the model's.
        cubin: embed machine code, so that the library is built without nvcc.

        Raises `InvalidInput` for the name, and for a folder that cannot be written or that holds a library of
        another name.
        """
        return write_bundle(self.make_bundle(name), folder, cubin=cubin)

    def report(self, file: str | Path) -> Path:
        """Write a report of the run: one HTML page with a table of the layers and a section for each. It
        needs no network. Returns the path.

        Raises `InvalidInput` for a file that cannot be written, and where plotly is not installed.
        """
        return self.make_report().write(file)

    def make_report(self) -> ReportPage:
        """Make the page that `report` writes. Raises `InvalidInput` where plotly is not installed."""
        from ekc.report.page import make_report
        from ekc.report.theme import import_plotly
        from ekc.search.run_data.from_result import collect_plan, collect_run

        import_plotly()
        plan = collect_plan(self.plan) if self.plan else None
        runs = [
            replace(collect_run(x.result), layer=x.layer.name, calls=x.layer.count)
            for x in self.layers
            if x.result is not None
        ]
        absent = [f"{x.layer.name}: {x.failure}" for x in self.layers if x.result is None]
        return make_report(runs, f"Layers of {self.model.name}", absent, plan)

    def __repr__(self) -> str:
        totals = "; ".join(format_total(total) for total in self.totals)
        return format_line(self, f"{shorten(self.device.label, 40)}: {totals}")

    def _repr_html_(self) -> str:
        return format_model_html(self)
