"""A report: one HTML page with everything in it, which opens from a mail and without a network.

Plotly's script, the figures of each run and the texts of its kernels are compressed (gzip, base64). The page
unpacks them with `DecompressionStream`: the script once, the rest when a section is opened.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from ekc.errors import InvalidInput
from ekc.report.pictures import PICTURES, draw_plan
from ekc.report.run_data import RunData, Table
from ekc.report.theme import SIMULATED, choose_scale, import_plotly
from ekc.search.clocks.plan import ClockPlan
from ekc.tables import format_quantity

TEMPLATES = Path(__file__).parent / "templates"
MEGABYTE = 1e6


@dataclass(frozen=True)
class ReportPage:
    """A page and the bytes of its parts."""

    html: str
    bytes_by_part: dict[str, int]
    """"plotly", "pictures", "code", "drawings" and "text": parts that add up to the page."""

    def format_size(self) -> str:
        """Format the size of the page and of its parts: `2.4 MB (plotly 2.0, pictures 0.2, ...)`."""
        parts = ", ".join(f"{name} {size / MEGABYTE:.2f}" for name, size in self.bytes_by_part.items())
        return f"{sum(self.bytes_by_part.values()) / MEGABYTE:.2f} MB ({parts})"

    def write(self, file: str | Path) -> Path:
        """Write the page. Raises `InvalidInput` for a file that cannot be written, and for one with other
        contents than an HTML page, such as a record file."""
        path = Path(file)
        check_page_file(path)
        try:
            path.write_text(self.html, encoding="utf-8")
        except (OSError, ValueError) as problem:
            raise _refuse_file(path, problem) from problem
        return path


def check_page_file(file: Path) -> None:
    """Raise `InvalidInput` for a file that is there and cannot be written, or that is no HTML page: a report
    would replace it."""
    if not file.is_file():
        return
    try:
        with file.open("r+b") as there:
            head = there.read(512).lstrip().lower()
    except OSError as problem:
        raise _refuse_file(file, problem) from problem
    if head and not head.startswith((b"<!doctype html", b"<html")):
        raise InvalidInput(f"report: {file} exists and is no HTML page; choose another name")


def _refuse_file(file: Path, problem: OSError | ValueError) -> InvalidInput:
    reason = getattr(problem, "strerror", None) or str(problem)
    return InvalidInput(f"report: {file} cannot be written ({reason})")


def make_report(
    runs: Sequence[RunData], title: str = "", failed: Sequence[str] = (), plan: ClockPlan | None = None
) -> ReportPage:
    """Make the page of one run or more, with a table of all of them.

    failed: a line for each run that has no kernel. plan: one clock for all runs.

    Raises `InvalidInput` where plotly is missing.
    """
    import_plotly()
    sizes: Counter[str] = Counter(dict.fromkeys(("plotly", "pictures", "code", "drawings"), 0))
    plotly = _pack_plotly()
    sizes["plotly"] += len(plotly)
    sections = [_make_section(run, number, sizes) for number, run in enumerate(runs)]
    plan_picture = _pack({"plan": draw_plan(plan).to_plotly_json()}) if plan else ""
    sizes["pictures"] += len(plan_picture)
    html = _load_template().render(
        title=title or runs[0].title,
        is_simulated=any(run.data.device.simulated for run in runs),
        simulated_word=SIMULATED,
        overview=make_overview(runs) if len(runs) > 1 else None,
        failed=failed,
        plan=plan,
        plan_layers=plan and make_layer_table(plan),
        plan_picture=plan_picture,
        sections=sections,
        plotly=plotly,
        style=(TEMPLATES / "report.css").read_text("utf-8"),
        script=(TEMPLATES / "report.js").read_text("utf-8"),
    )
    total = len(html.encode())
    return ReportPage(html, {**sizes, "text": total - sum(sizes.values())})


def make_overview(runs: Sequence[RunData]) -> Table:
    """Make the table of several runs: a row each, and the sums where the calls of all layers are known."""
    best = [run.named.get("best") for run in runs]
    seconds = np.array([np.nan if t is None else t.latency_s for t in best])
    joules = np.array([np.nan if t is None else t.energy_j for t in best])
    (scale_s, unit_s), (scale_j, unit_j) = choose_scale(seconds, "s"), choose_scale(joules, "J")
    headers = (
        "",
        "device",
        f"latency [{unit_s}]",
        f"energy [{unit_j}]",
        "source",
        "saving",
        "speed-up",
        *(("calls",) if any(run.calls for run in runs) else ()),
    )
    rows = [
        (
            run.layer or run.title,
            run.data.device.label,
            _format_number(s / scale_s),
            _format_number(j / scale_j),
            "metered" if t is not None and t.metered else "predicted",
            _format_saving(run),
            _format_speedup(run),
            str(run.calls) if run.calls else "",
        )[: len(headers)]
        for run, t, s, j in zip(runs, best, seconds, joules, strict=True)
    ]
    note = "Saving: energy of the best against the fastest. Speed-up: of the best over the naive schedule."
    calls = np.array([run.calls for run in runs])
    if calls.all() and np.isfinite(joules).all():
        total_s, total_j = float(calls @ seconds), float(calls @ joules)
        totals = (_format_total(total, unit) for total, unit in ((total_s, "s"), (total_j, "J")))
        note += f" All {calls.sum()} calls: {', '.join(totals)}."
    return Table(headers, tuple(rows), note)


LAYER_HEADERS = ("layer", "calls", "kernel", "latency", "energy", "time", "saves")


def make_layer_table(plan: ClockPlan) -> Table:
    """Make the table of the layers of a plan; the one that saves most is first."""
    rows = [
        (
            layer.name,
            str(layer.calls),
            layer.role,
            _format_scaled(layer.latency_s.value, "s"),
            _format_scaled(layer.energy_j.value, "J"),
            f"{100 * layer.slowdown:+z.1f} %",
            f"{100 * share:z.1f} %",
        )
        for layer, share in plan.list_layers_by_saving()
    ]
    note = (
        f"Latency and energy of a call at {plan.clock_mhz} MHz. Time: against the fastest kernel at "
        f"{plan.default_mhz} MHz. Saves: share of the model's energy."
    )
    return Table(LAYER_HEADERS, tuple(rows), note)


def _format_scaled(value: float, unit: str) -> str:
    return format_quantity(value, unit).replace(" u", " \N{MICRO SIGN}")


def _format_number(value: float) -> str:
    """Format with four significant digits, and without an exponent."""
    if not np.isfinite(value):
        return "-"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def _format_total(value: float, unit: str) -> str:
    scale, unit = choose_scale(np.array([value]), unit)
    return f"{_format_number(value / scale)} {unit}"


def _format_saving(run: RunData) -> str:
    best, fastest = run.named.get("best"), run.named.get("fastest")
    if best is None or fastest is None or not np.isfinite(best.energy_j / fastest.energy_j):
        return "-"
    return f"{100 * (1 - best.energy_j / fastest.energy_j):z.1f} %"


def _format_speedup(run: RunData) -> str:
    best, naive = run.named.get("best"), run.named.get("naive")
    return "-" if best is None or naive is None else f"{naive.latency_s / best.latency_s:.1f}x"


@cache
def _load_template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.j2")


def _make_section(run: RunData, number: int, sizes: Counter[str]) -> dict[str, Any]:
    """Make the values of the template for one run, and add up their sizes."""
    figures = {name: draw(run).to_plotly_json() for name, draw in PICTURES.items() if name not in run.missing}
    code = [asdict(kernel) | {"drawing": ""} for kernel in run.kernels]
    drawings = [kernel.drawing for kernel in run.kernels]
    packed = {"pictures": _pack(figures), "code": _pack(code)}
    if any(drawings):
        packed["drawings"] = _pack(drawings)
    for part, text in packed.items():
        sizes[part] += len(text)
    return {"run": run, "number": number, "names": list(figures), "packed": packed}


def _pack(value: object) -> str:
    """JSON text, compressed, as base64."""
    from plotly.utils import PlotlyJSONEncoder

    return _compress(json.dumps(value, separators=(",", ":"), cls=PlotlyJSONEncoder).encode())


@cache
def _pack_plotly() -> str:
    """Plotly's script, from its package."""
    from plotly.offline import get_plotlyjs

    return _compress(get_plotlyjs().encode())


def _compress(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
