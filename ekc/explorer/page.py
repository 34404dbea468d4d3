"""The page of the explorer, built with NiceGUI: the figures now, the list of next steps, and the tabs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nicegui import ui

from ekc.errors import EkcError
from ekc.explorer import panels
from ekc.explorer.figures import compute_share_below
from ekc.explorer.panels import format_change, format_energy, format_time
from ekc.explorer.session import Explorer, ListedStep, Part
from ekc.ir.drawing.draw import PICTURE_NAMES

FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M9 0 2 9h5l-1 7 8-10H8z" '
    'fill="#2f6db3"/></svg>'
)
HINTS = {
    "split": "Cuts a loop into an outer and an inner one. Alone it changes few figures, but other steps need "
    "the tiles that it makes.",
    "divide": "Cuts an axis where what is read divides it, as groups of channels do.",
    "fuse": "Joins two neighbouring loops into one.",
    "reorder": "Exchanges two neighbouring loops.",
    "bind": "Runs a loop on blocks or on threads instead of one iteration after another. Neighbours on "
    "thread.x should be neighbours in memory.",
    "unroll": "Writes iterations out, which saves loop steps and lets loads overlap.",
    "vectorize": "Moves the elements of the innermost loop as vectors.",
    "pipeline": "Fetches the next tiles while one is used, by registers or by asynchronous copies.",
    "cache_read": "Copies what a loop reads closer: into shared memory for all threads of a block, or into "
    "the registers of each thread. A pad or a swizzle avoids bank conflicts.",
    "cache_write": "Keeps the result in registers until it is complete, and writes it once.",
    "compute_at": "Moves a copy to another loop, or computes an earlier tensor where it is used.",
    "compute_inline": "Uses a tensor where it is made instead of storing it.",
    "atomic": "Adds sums to memory by atomics, so that a reduction can be bound to blocks.",
    "rfactor": "Reduces parts of an axis in a launch of their own (split-K).",
    "pack": "Copies an input into another order of its dimensions first.",
    "tensorize": "Does the innermost loops as a product on tensor cores.",
    "recorded": "Goes to another schedule of the recording.",
}
ALL_KINDS = "all steps"
_FIGURE_TABS = ("CUDA", "Counts", "Roofline", "Path", "Space")
TABS_BY_PART: dict[Part, tuple[str, ...]] = {
    "path": ("Program", "Pictures", *_FIGURE_TABS),
    "list": (),
    "figures": _FIGURE_TABS,
    "space": ("Space",),
    "tuner": ("Tuner",),
}
"""Part of a session -> the tabs that show it."""
TABS = (*TABS_BY_PART["path"], "Tuner")
STYLE = """
body { --line: #80808040; }
.q-page-container, .nicegui-content { padding: 0; }
.page { padding: 12px 16px; gap: 12px; }
.hint { white-space: pre-line; font-size: 12px; }
.note { font-size: 12px; opacity: .75; }
.title { font-size: 13px; font-weight: 600; margin-top: 8px; }
.now { gap: 28px; } .now .big { font-size: 24px; font-weight: 600; line-height: 1.2; }
.mono, .step { font: 12px/1.45 ui-monospace, SFMono-Regular, Menlo, monospace; }
pre.code { font: 12px/1.5 ui-monospace, SFMono-Regular, Menlo, monospace; margin: 0; overflow-x: auto; }
pre.code span { display: block; white-space: pre; padding: 0 6px; border-left: 3px solid transparent; }
pre.code span.new { background: #2f6db326; border-left-color: #2f6db3; }
table.figures { border-collapse: collapse; font-size: 12px; }
table.figures td, table.figures th { padding: 2px 12px 2px 0; border-bottom: 1px solid var(--line); }
table.figures td:not(:first-child), table.figures th:not(:first-child) { text-align: right; }
table.figures th { text-align: left; font-weight: 600; }
.move { gap: 8px; border-bottom: 1px solid var(--line); padding: 0 4px; }
.move.present { background: #2f6db326; } .move.undone { opacity: .6; }
.move .num { width: 84px; text-align: right; font-size: 12px; white-space: nowrap; }
.operator { flex: 1 1 0; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.step { overflow-wrap: anywhere; }
.steps-table { height: 560px; } .steps-table tbody tr { cursor: pointer; }
.steps-table td:first-child { white-space: normal; } .steps-table td { padding: 3px 6px !important; }
.steps-table th { padding: 3px 6px !important; } .q-btn { text-transform: none; }
.steps-table .q-table__top { display: none; }
.better { color: #2a8a4a; } .worse { color: #c2424f; }
.body--dark .better { color: #6fd08c; } .body--dark .worse { color: #ff8a93; }
.figure { height: 420px; } .figure text { fill: currentColor !important; }
.picture svg { max-width: 100%; height: auto; }
.left { width: 590px; max-width: 100%; } .right { flex: 1 1 520px; min-width: 0; }
@media (max-width: 1100px) { .left, .right { width: 100%; flex: 1 1 100%; } .steps-table { height: 330px; } }
"""
_shown: list[Explorer] = []


def show(explorer: Explorer) -> None:
    """Make this the session that the page shows."""
    _shown[:] = [explorer]


def build_page() -> None:
    """Build the page for one tab of a browser; all tabs show the same session."""
    explorer = _shown[0]
    if not explorer.is_started:
        explorer.start()
    page = _Page(explorer)
    ui.context.client.on_delete(explorer.subscribe(page.update))


class _Page:
    """The elements of one tab."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.picture = PICTURE_NAMES[0]
        self.tab = TABS[0]
        ui.add_css(STYLE)
        self.dark = ui.dark_mode(None)
        with ui.column().classes("page w-full"):
            self._build_header()
            self._build_now()
            with ui.row().classes("w-full items-start"):
                with ui.column().classes("left").style("gap: 6px"):
                    self._build_list()
                with ui.column().classes("right"):
                    self._build_tabs()
        self.fill_list()

    def _build_header(self) -> None:
        explorer = self.explorer
        with ui.row().classes("w-full items-center no-wrap"):
            ui.label("ekc explore").classes("text-lg font-bold whitespace-nowrap")
            ui.label(str(explorer.schedule.op)).classes("mono operator")
            ui.badge(explorer.device.label).props("color=primary").tooltip("all figures are of this device")
            ui.button(icon="contrast", on_click=self._switch_theme).props("flat dense").tooltip(
                "dark, light, as the system has it"
            )

    def _switch_theme(self) -> None:
        self.dark.value = {None: True, True: False, False: None}[self.dark.value]

    def update(self, part: Part) -> None:
        """Show what changed."""
        if self.tab in TABS_BY_PART[part]:
            self.show_tab.refresh()
        if part in ("path", "figures", "space"):
            self.show_now.refresh()
        if part == "path":
            self._enable_buttons()
        if part != "tuner":
            self.fill_list()

    def act(self, action: Callable[..., Any], *arguments: Any) -> bool:
        """Do what was asked, or show the reason of a refusal."""
        try:
            action(*arguments)
        except EkcError as problem:
            self._show_refusal(str(problem))
            return False
        except Exception as problem:
            self._show_refusal(f"{type(problem).__name__}: {problem}")
            raise
        self.refusal.set_visibility(False)
        return True

    def _show_refusal(self, text: str) -> None:
        self.refusal.set_text(text)
        self.refusal.set_visibility(True)

    def _build_now(self) -> None:
        """The figures of the present schedule, and the buttons, which stay while figures change."""
        explorer = self.explorer
        with ui.row().classes("w-full items-end justify-between"):
            self.show_now()
            with ui.row().style("gap: 6px"):
                self.undo = ui.button("Undo", icon="undo", on_click=lambda: self.act(explorer.undo))
                # A button that is off shows no tooltip of its own.
                with ui.element():
                    self.redo = ui.button("Redo", icon="redo", on_click=lambda: self.act(explorer.redo))
                    self.redo_reason = ui.tooltip("").classes("redo-reason")
                save = ui.button("Save Python", icon="save", on_click=self._save_python)
                save.tooltip("the present schedule as a Python file")
                save_path = ui.button("JSON", on_click=self._save_json)
                save_path.tooltip("the path with its figures; --schedule FILE of every command reads it")
                for button in (self.undo, self.redo, save, save_path):
                    button.props("outline dense")
        self._enable_buttons()

    def _enable_buttons(self) -> None:
        self.undo.set_enabled(bool(self.explorer.path.moves))
        reason = self.explorer.explain_redo()
        self.redo.set_enabled(not reason)
        self.redo_reason.set_text(reason)
        self.redo_reason.set_visibility(bool(reason))

    @ui.refreshable_method
    def show_now(self) -> None:
        """The figures of the present schedule."""
        explorer = self.explorer
        now, before = explorer.get_figures(explorer.schedule), explorer.get_figures(explorer.previous)
        kinds = (("Time", "latency_s", format_time), ("Energy", "energy_j", format_energy))
        with ui.row().classes("now items-end"):
            for label, name, form in kinds:
                value: float | None = getattr(now, name, None)
                old: float | None = getattr(before, name, None)
                with ui.column().style("gap: 0"):
                    ui.label(f"{label} of a call").classes("note")
                    ui.label(form(value)).classes("big")
                    change = format_change(value, old)
                    color = "" if not (value and old) else "better" if value < old else "worse"
                    ui.label(f"{change} by the last step" if change else " ").classes(f"text-xs {color}")
            ui.label(self._describe_now()).classes("note")

    def _describe_now(self) -> str:
        explorer = self.explorer
        now = explorer.get_figures(explorer.schedule)
        if now is None:
            return f"compiling for {explorer.device.label}"
        if now.failure:
            return now.failure
        parts = [now.source, f"{now.power_w:.0f} W" if now.power_w else ""]
        if explorer.sample is not None and now.estimated_latency_s:
            share = 1 - compute_share_below(now.estimated_latency_s, explorer.sample.latency_s)
            parts.append(f"by estimate faster than {100 * share:.0f} % of the space")
        return "; ".join(filter(None, parts))

    def _save_python(self) -> None:
        explorer = self.explorer
        found = [explorer.get_figures(s) for s in explorer.path.schedules[1:]]
        notes = tuple(
            f"{format_time(f.latency_s)}, {format_energy(f.energy_j)}, {f.source}"
            if f and f.latency_s
            else ""
            for f in found
        )
        ui.download.content(explorer.path.to_python(notes), f"{explorer.schedule.op.name}_schedule.py")

    def _save_json(self) -> None:
        explorer = self.explorer
        found = [explorer.get_figures(s) for s in explorer.path.schedules[1:]]
        figures = [
            {"latency_s": f.latency_s, "energy_j": f.energy_j, "source": f.source} if f else {} for f in found
        ]
        ui.download.content(explorer.path.to_json(figures), f"{explorer.schedule.op.name}_path.json")

    def _build_list(self) -> None:
        with ui.row().classes("w-full items-center no-wrap").style("gap: 6px"):
            self.field = ui.input(placeholder="any step as Python, written as in the list").props(
                "dense outlined clearable"
            )
            self.field.classes("mono grow free-text").on("keydown.enter", self._take_text)
            ui.button("Take", on_click=self._take_text).props("dense outline")
        self.refusal = ui.label().classes("worse text-sm refusal")
        self.refusal.set_visibility(False)
        self.headline = ui.label().classes("text-sm font-bold headline")
        self.explanation = ui.label().classes("note")
        with ui.row().classes("w-full items-center").style("gap: 8px"):
            self.filter = ui.input(placeholder="filter", on_change=self.fill_list)
            self.filter.props("dense outlined clearable debounce=150").classes("w-36 filter")
            self.kinds = ui.select([ALL_KINDS], value=ALL_KINDS, on_change=self.fill_list)
            self.kinds.props("dense outlined options-dense").classes("w-36")
            self.best = ui.switch("best number of each only", value=True, on_change=self.fill_list)
            self.best.props("dense").classes("text-xs").tooltip(
                "of steps that differ in numbers only, the fastest"
            )
            self.best.set_visibility(not self.explorer.is_recorded)
        columns = [
            _make_column("step", "next step", "left"),
            _make_column("time", "time [us]"),
            _make_column("dtime", "change"),
        ]
        columns += [_make_column("energy", "energy [mJ]"), _make_column("denergy", "change")]
        self.table = ui.table(
            rows=[], columns=columns, row_key="step", pagination={"rowsPerPage": 0, "sortBy": "time"}
        )
        self.table.classes("steps-table w-full").props("dense flat bordered virtual-scroll hide-bottom")
        self.table.add_slot("body-cell-step", _STEP_CELL)
        for name in ("dtime", "denergy"):
            self.table.add_slot(f"body-cell-{name}", _CHANGE_CELL)
        self.table.on("rowClick", lambda e: self._take_row(e.args[1]["step"]))

    def _take_text(self) -> None:
        text = self.field.value or ""
        if self.act(self.explorer.take_text, text):
            # The browser clears the field unless something else was typed since; it tells the server.
            same = f"field && field.inputValue === {json.dumps(text)}"
            ui.run_javascript(
                f"const field = getElement({self.field.id}); if ({same}) field.inputValue = '';"
            )

    def _take_row(self, text: str) -> None:
        row = next((row for row in self.explorer.rows if row.text == text), None)
        if row is not None:
            self.act(self.explorer.take, row)

    def fill_list(self) -> None:
        """Fill the table of next steps."""
        explorer, rows = self.explorer, list(self.explorer.rows)
        kinds, kind = [ALL_KINDS, *sorted({row.kind for row in rows})], self.kinds.value
        if kind in kinds and kinds != self.kinds.options:
            self.kinds.set_options(kinds, value=kind)
        words = (self.filter.value or "").strip().lower()
        shown = [row for row in rows if kind in (ALL_KINDS, row.kind)]
        shown = [row for row in shown if words in f"{row.text} {row.note}".lower()]
        if self.best.value:
            shown = _choose_best_of_families(shown)
        self.table.rows = [self._make_row(row) for row in shown]
        self.headline.set_text(self._describe_list(len(shown)))
        self.explanation.set_text(
            "Recorded figures, not measured here. Only recorded schedules have any; hover for what differs."
            if explorer.is_recorded
            else f"Estimated, not compiled, for {explorer.device.label}{self._describe_error()}"
        )

    def _describe_list(self, shown: int) -> str:
        explorer = self.explorer
        if explorer.failure:
            return explorer.failure
        if explorer.is_listing:
            return "checking the menu, estimating its steps"
        what = "recorded schedules" if explorer.is_recorded else "legal next steps"
        return f"{len(explorer.rows)} {what}, {shown} shown"

    def _describe_error(self) -> str:
        errors = sorted(map(abs, self.explorer.list_errors("latency_s")))
        if not errors:
            return ""
        return f"; off by {100 * errors[len(errors) // 2]:.0f} % in time on this path (median)"

    def _make_row(self, row: ListedStep) -> dict[str, Any]:
        explorer = self.explorer
        now = explorer.get_figures(explorer.schedule)
        made: dict[str, Any] = {
            "step": row.text,
            "hint": row.detail or HINTS.get(row.kind, ""),
            "note": row.note,
        }
        for name, key, unit in (("latency_s", "time", 1e6), ("energy_j", "energy", 1e3)):
            value = explorer.predict(name, getattr(row, name))  # type: ignore[arg-type]
            base = getattr(now, name, None)
            if base is None and explorer.estimate_now is not None:
                base = float(getattr(explorer.estimate_now, name)[0])
            made[key] = None if value is None else value * unit
            made[f"d{key}"] = None if value is None or not base else 100 * (value / base - 1)
        return made

    def _build_tabs(self) -> None:
        tabs = ui.tabs(on_change=self._choose_tab).props("dense no-caps align=left")
        with tabs.classes("w-full"):
            made = {name: ui.tab(name) for name in TABS}
        tabs.set_value(made[self.tab])
        self.show_tab()

    def _choose_tab(self, event: Any) -> None:
        self.tab = event.value
        self.show_tab.refresh()

    @ui.refreshable_method
    def show_tab(self) -> None:
        """The content of the chosen tab."""
        explorer, act = self.explorer, self.act
        shows: dict[str, Callable[[], None]] = {
            "Program": lambda: panels.show_program(explorer),
            "Pictures": lambda: panels.show_picture(explorer, self.picture, self._choose_picture),
            "CUDA": lambda: panels.show_cuda(explorer),
            "Counts": lambda: panels.show_counts(explorer),
            "Roofline": lambda: panels.show_roofline(explorer),
            "Path": lambda: panels.show_path(explorer, act),
            "Space": lambda: panels.show_space(explorer),
            "Tuner": lambda: panels.show_tuner(explorer, act),
        }
        with ui.column().classes("w-full p-2"):
            shows[self.tab]()

    def _choose_picture(self, name: str) -> None:
        self.picture = name
        self.show_tab.refresh()


_STEP_CELL = """
<q-td :props="props"><span class="step">{{ props.row.step }}</span>
<div v-if="props.row.note" class="note">{{ props.row.note }}</div>
<q-tooltip max-width="420px" class="hint" :delay="400" anchor="bottom left" self="top left">
{{ props.row.hint }}</q-tooltip></q-td>
"""
_CHANGE_CELL = """
<q-td :props="props" :class="props.value < -0.5 ? 'better' : props.value > 0.5 ? 'worse' : ''">
{{ props.value == null ? '' : Math.abs(props.value) < 0.05 ? '0.0 %'
   : props.value >= 100 ? 'x ' + (1 + props.value / 100).toPrecision(3)
   : (props.value > 0 ? '+' : '') + props.value.toFixed(1) + ' %' }}</q-td>
"""


def _make_column(name: str, label: str, align: str = "right") -> dict[str, Any]:
    column = {"name": name, "label": label, "field": name, "sortable": True, "align": align}
    if name in ("time", "energy"):
        column[":format"] = "v => v == null ? '' : Number(v.toPrecision(4)).toLocaleString('en-US')"
    return column


def _choose_best_of_families(rows: list[ListedStep]) -> list[ListedStep]:
    """The row of least time of each family; the first where nothing is estimated."""
    best: dict[int, ListedStep] = {}
    for row in rows:
        other = best.get(row.family)
        if other is None or (row.latency_s or 0.0) < (other.latency_s or 0.0):
            best[row.family] = row
    return list(best.values())
