"""The result of `ekc.tune`: its data, and what a user does with it (compile, export, print)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ekc.codegen.library.build import KernelChoice, export
from ekc.codegen.library.kernels import KernelFigures, TargetBoard
from ekc.display import format_line, shorten
from ekc.errors import InvalidInput
from ekc.runtime.kernel import Kernel, compile
from ekc.search.clocks.plan import ClockPlan
from ekc.search.cost_model.features import decode_features
from ekc.search.data.explanation import EnergyExplanation
from ekc.search.data.result import DeviceInfo, TuningData
from ekc.search.data.trial import Trial, describe_trial, make_dataframe
from ekc.search.space.space_structure import SpaceStructure
from ekc.search.summary import format_summary, format_summary_html
from ekc.tables import count_nouns


def make_choice(
    trial: Trial, role: str = "both", provenance: Mapping[str, str] | None = None
) -> KernelChoice:
    """Make the choice of a trial's schedule with its figures. By default the provenance is the verdict of the
    check."""
    facts = {"checked": trial.checked or "not executed"} if provenance is None else provenance
    figures = KernelFigures(trial.latency_s, trial.energy_j, trial.metered, facts)
    return KernelChoice(trial.schedule, figures, role)


def make_board(device: DeviceInfo) -> TargetBoard:
    """Make the board of a library of the device of a run."""
    sms = device.limits.sms if device.limits else 0
    return TargetBoard(device.name, device.arch, device.simulated, sms)


@dataclass(frozen=True, repr=False)
class TuningResult(TuningData):
    """The outcome of `ekc.tune`."""

    plan: ClockPlan | None = None
    """With clocks="search": the clock and the kernel of least energy that are at most `max_slowdown` slower
    than the fastest at the default clock, and what they save. None where clocks were not searched."""
    found_structure: SpaceStructure | None = None
    """With evolve=True: the structure of `best`, if an edit made it. `to_json` writes it to a file, for
    `ekc.tune(op, space=[...])`."""

    def compile(self, name: str | None = None) -> Kernel:
        """Compile the best schedule to a callable kernel. `name` replaces the operator's in its functions."""
        return compile(self.best.schedule, arch=self.device.arch, name=name)

    def export(self, folder: str | Path, name: str | None = None, *, cubin: bool = False) -> tuple[Path, ...]:
        """Write the best kernel as a C++ library: a project for CMake and make with one function. Returns the
        paths, CUDA source first.

        name: of the library; by default one made of the operator's.
        cubin: embed machine code, so that the library is built without nvcc.

        Raises `InvalidInput` for the name, and for a folder that cannot be written or that holds a library of
        another name.
        """
        choice = make_choice(self.best, provenance=self.provenance())
        return export([choice], make_board(self.device), folder, name=name, cubin=cubin)

    def plot(self, picture: str) -> Any:
        """Draw a picture of the run as a `plotly.graph_objects.Figure`.

        picture: "front" (energy against latency), "progress", "roofline", "predicted" (energy predicted and
        metered), "importance" (which decisions matter), "energy" (by cause), "explanation" (what the
        energy model says of it) or "space" (a map of the trials).

        Raises `InvalidInput` for another name, for a picture that the run has no data for (the message says
        what is missing), and where plotly is not installed.
        """
        from ekc.report.pictures import check_picture, draw_picture
        from ekc.report.theme import import_plotly
        from ekc.search.run_data.from_result import collect_run

        check_picture(picture)
        import_plotly()
        return draw_picture(collect_run(self, (picture,)), picture)

    def report(self, file: str | Path) -> Path:
        """Write a report of the run: one HTML page with pictures, conditions, model card and code. It needs
        no network. Returns the path.

        Raises `InvalidInput` for a file that cannot be written, and where plotly is not installed.
        """
        from ekc.report.page import make_report
        from ekc.report.theme import import_plotly
        from ekc.search.run_data.from_result import collect_run

        import_plotly()
        return make_report([collect_run(self)], plan=self.plan).write(file)

    def explain_energy(self) -> EnergyExplanation:
        """Explain the energy of the best schedule against the fastest by the boosted model: SHAP values by
        feature, and the part of the analytic prior. They add up to the ratio that the model predicts.

        Raises `InvalidInput` where no boosted model was used: the device's own prior is not the analytic one,
        or the result was loaded from records.
        """
        if self.explanation is None:
            raise InvalidInput(
                f"explain_energy: no boosted model was used on {self.device.label}; ekc explain compares two "
                "schedules by what was measured"
            )
        return self.explanation

    def summary(self) -> str:
        """Format the result as text: a table of best, fastest and baseline, notes, and the clock plan."""
        return format_summary(self) + (f"\n\n{self.plan.summary()}" if self.plan else "")

    def to_json(self) -> dict[str, Any]:
        """One JSON object under the attribute names."""
        return super().to_json() | {"plan": self.plan.to_json() if self.plan else None}

    def to_dataframe(self) -> Any:
        """The trials as a pandas data frame, one row each, failures included, with their `status`. Columns:
        the figures, named with their units as the attributes of `Trial`; the features (`ekc.features`), in a
        run of this session; then the numbers of the schedules (`ekc.search.data.trial.list_decisions`), empty
        where a schedule has no such loop or staging.

        Raises `InvalidInput` where pandas is missing.
        """
        features = {}
        if self.features is not None and len(self.features) == len(self.trials):
            features = decode_features(self.features)
        return make_dataframe(self.trials, self.device.simulated, features)

    def __repr__(self) -> str:
        counts = f"{count_nouns(self.trial_count, 'trial')}, {self.metered_count} metered"
        where = f"{shorten(self.op.name)} on {shorten(self.device.label, 40)}"
        return format_line(self, f"{where}: {describe_trial(self.best)}; {counts}")

    def _repr_html_(self) -> str:
        return format_summary_html(self)
