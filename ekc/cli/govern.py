"""`ekc govern`: run a training job at the clocks of least energy within a slowdown budget."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekc.cli.arguments import refuse_unused_options
from ekc.cli.govern_options import (
    DAEMON_OPTIONS,
    OBJECTIVE_OPTIONS,
    PREFIX,
    check_memory_name,
    make_policy,
    make_tariff,
    read_defaults,
    run_daemon_command,
)
from ekc.cli.output import EXIT_BAD_INPUT, FILE, log, print_result
from ekc.errors import ActuatorError, InvalidInput

if TYPE_CHECKING:
    from ekc.cli.govern_output import GovernOutput
    from ekc.governor.accounting import SimulatedTruth
    from ekc.governor.event_records import EventCallback
    from ekc.governor.live.governor_process import GovernorExit
    from ekc.governor.live.job_report import GovernorLog
    from ekc.governor.live.metrics import GovernorMetrics
    from ekc.governor.model_file import ModelFile
    from ekc.governor.protocols import Actuator, Probe
    from ekc.governor.request import PlannedClock, Policy, Tariff
    from ekc.governor.saved_choice import ChoiceFile


SIMULATE_OPTIONS = ("card", "minutes", "seed")
GPU_OPTIONS = ("gpu", "each", "actuator", "sm_before", "memory_before", "gpus_of", "steps", "plan")
POLICY_OPTIONS = (*OBJECTIVE_OPTIONS, "advise", "model")
RESTORE_ALONE = "--restore goes alone; govern with a second command, after it"


@click.command(context_settings={"allow_interspersed_args": False, "auto_envvar_prefix": PREFIX})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--pid", type=click.IntRange(min=1), allow_from_autoenv=False, help="Govern a running process.")
@click.option(
    "--simulate",
    metavar="KIND",
    allow_from_autoenv=False,
    help="Govern a simulated job without a GPU: compute, memory, starved, ...",
)
@click.option(
    "--restore",
    is_flag=True,
    allow_from_autoenv=False,
    help="Restore the settings that killed or suspended governors of this user left changed.",
)
@click.option(
    "--advise", is_flag=True, help="Change no setting; report the settings to use and the expected saving."
)
@click.option(
    "--plan",
    type=FILE,
    metavar="FILE",
    help="Hold the clock of this plan instead of a search. `ekc tune --clocks search --plan FILE` writes it.",
)
@click.option(
    "--model",
    type=FILE,
    metavar="FILE",
    help="Begin a search at the clock that this model predicts from counters. "
    "`python -m benchmarks.governor.predict --out FILE` writes it.",
)
@click.option(
    "--max-slowdown",
    type=float,
    default=0.05,
    show_default=True,
    help="Largest slowdown of a training step, as a share, for the objective energy.",
)
@click.option(
    "--objective",
    default="energy",
    show_default=True,
    help="energy, edp, ed2p, or speed (with --min-saving or a power cap).",
)
@click.option(
    "--min-saving",
    type=float,
    default=0.05,
    show_default=True,
    help="Least energy saving, as a share, for the objective speed.",
)
@click.option(
    "--power-cap",
    type=float,
    metavar="WATTS",
    help="Fastest settings whose mean power is at most this, for each GPU.",
)
@click.option(
    "--node-power-cap",
    type=float,
    metavar="WATTS",
    help="Fastest settings whose mean power is at most this, for all GPUs of the job together.",
)
@click.option(
    "--deadline",
    metavar="TIME",
    help="Least energy such that the job ends in time: 2h, 1h30m, 18:30 or a date and time. "
    "Needs --remaining, or counted steps.",
)
@click.option(
    "--remaining",
    type=float,
    metavar="SECONDS",
    help="Remaining run time of the job at full speed, if known.",
)
@click.option(
    "--steps-total",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps of the whole job, for --deadline; a script counts them with ekc.Governor.",
)
@click.option(
    "--gpu",
    multiple=True,
    metavar="N|UUID",
    help="GPU number as in nvidia-smi, or UUID. [default: the GPUs of the job]",
)
@click.option(
    "--each",
    is_flag=True,
    help="Choose settings for each GPU separately. [default: the same for all GPUs of the job]",
)
@click.option(
    "--actuator",
    default="auto",
    show_default=True,
    help="How clocks are set: auto, nvml (needs root), daemon (see --daemon) or zeusd.",
)
@click.option(
    "--sm-before",
    type=click.IntRange(min=1),
    metavar="MHZ",
    help="Limit of the SM clock that someone else has set already.",
)
@click.option(
    "--memory-before",
    type=click.IntRange(min=1),
    metavar="MHZ",
    help="Limit of the memory clock that someone else has set already.",
)
@click.option(
    "--json",
    type=FILE,
    metavar="FILE",
    help="Write events to this file, one JSON object per line; - is standard output.",
)
@click.option(
    "--plot", type=FILE, metavar="FILE", help="Draw clock, power and period over time into this page (.html)."
)
@click.option("--quiet", is_flag=True, help="Print failures only.")
@click.option(
    "--card", default="rtx3090", show_default=True, help="Simulated GPU for --simulate: rtx3090 or h200."
)
@click.option(
    "--minutes", type=float, default=60.0, show_default=True, help="Simulated minutes for --simulate."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for --simulate.")
@click.option(
    "--daemon",
    is_flag=True,
    help="Set clocks for the users of an allow-list, as a service that runs as root.",
)
@click.option(
    "--socket",
    type=FILE,
    metavar="PATH",
    help="Socket of --daemon. [default: /run/ekc/governor.sock]",
)
@click.option(
    "--allow",
    type=FILE,
    metavar="FILE",
    help="Allow-list of --daemon. [default: /etc/ekc/governor.toml]",
)
@click.option(
    "--print-unit",
    type=click.Choice(("service", "socket")),
    help="With --daemon: print a unit file of systemd, and exit.",
)
@click.option(
    "--remember",
    metavar="NAME",
    help="Keep the choice for the next job of this name, and begin with that of the last one.",
)
@click.option(
    "--price",
    type=(float, str),
    metavar="NUMBER CURRENCY",
    help="Price of a kWh, such as 0.30 EUR: the report has the money saved.",
)
@click.option(
    "--intensity",
    type=float,
    metavar="GRAMS",
    help="CO2 of a kWh in grams: the report has the CO2 saved.",
)
@click.option(
    "--metrics",
    metavar="PORT|FILE",
    help="Prometheus metrics: a port on 127.0.0.1, ADDRESS:PORT, or a FILE.prom for node_exporter.",
)
@click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=read_defaults,
    help="Defaults of these options, as TOML. [default: ekc/govern.toml in $XDG_CONFIG_HOME]",
)
@click.option("--gpus-of", type=int, hidden=True, allow_from_autoenv=False)
@click.option("--steps", type=FILE, hidden=True, allow_from_autoenv=False)
def govern(
    command: tuple[str, ...],
    pid: int | None,
    simulate: str | None,
    restore: bool,
    quiet: bool,
    plot: Path | None,
    **options: Any,
) -> int:
    """Run COMMAND, or watch a process, and set the clocks of its GPU to save energy.

    The job itself is not changed. Whatever ends the governor, the previous settings are restored. The exit
    status is the job's.

    \b
      ekc govern -- python train.py
      ekc govern --advise --pid 4711
      ekc govern --simulate compute --card h200
      ekc govern --plan plan.json -- python serve.py
      ekc govern --restore
      ekc govern --daemon
    """
    if options["daemon"]:
        return run_daemon_command(**options)
    refuse_unused_options(DAEMON_OPTIONS, "it is for --daemon; leave it out")
    asked = [x for x in (command, pid, simulate) if x]
    if restore:
        refuse_unused_options({p.name for p in govern.params} - {"restore"}, RESTORE_ALONE)
        return _restore_settings()
    if len(asked) != 1:
        raise InvalidInput("give one thing to govern: -- COMMAND..., --pid N or --simulate KIND")
    if simulate:
        refuse_unused_options(GPU_OPTIONS, "it is for GPUs, and --simulate has none; leave it out")
    else:
        refuse_unused_options(SIMULATE_OPTIONS, "it is for --simulate KIND; leave it out")
    if options["plan"] is not None:
        refuse_unused_options(POLICY_OPTIONS, "the plan has its clock, and nothing is searched; leave it out")
        options["plan"] = _read_plan(options["plan"])
    if options["advise"]:
        refuse_unused_options(("model",), "it says where a search begins, and advice has none; leave it out")
    if options["plan"] is not None or options["advise"]:
        options["model"] = None  # A default of a file or of the environment, which has no search to begin.
    options["model"] = _read_model(options["model"], options["card"] if simulate else None)
    from ekc.cli.govern_output import GovernOutput

    policy, tariff = make_policy(click.get_current_context(), options), make_tariff(options)
    if plot is not None:
        from ekc.governor.live.job_plot import check_plot_file

        check_plot_file(plot)
    metrics = _open_metrics(options["metrics"])
    with closing(GovernOutput(quiet, options["json"], bool(command), metrics)) as lines:
        if simulate:
            logs, truth = _govern_simulated(simulate, policy, lines, options)
            _print_reports(logs, tariff, truth, lines, plot)
            return 0
        end = _govern_job(command, pid, policy, lines, options)
        _print_reports(end.logs, tariff, None, lines, plot, end.core_share, end.absence)
        return EXIT_BAD_INPUT if pid and end.problem else end.status


def _read_plan(file: Path) -> PlannedClock:
    """The clock of a plan. Raises `InvalidInput` for a file that holds no plan."""
    from ekc.governor.request import PlannedClock
    from ekc.search.clocks.plan import ClockPlan

    plan = ClockPlan.read(file)
    return PlannedClock(plan.device, plan.clock_mhz, plan.slowdown, plan.savings.together.value)


def _read_model(file: Path | None, card: str | None) -> ModelFile | None:
    """The model of a file, if one is given. Raises `InvalidInput` where it does not fit, also one of another
    simulated card; the boards of a job are known later."""
    if file is None:
        return None
    from ekc.governor.model_file import read_model_file

    model = read_model_file(file)
    if card is not None:
        model.check_board(f"the simulated {card}", card)
    return model


def _govern_job(
    command: tuple[str, ...], pid: int | None, policy: Policy, lines: GovernOutput, options: dict[str, Any]
) -> GovernorExit:
    """Start the job, then govern it: nothing large is imported, and no driver called, before the job runs."""
    from ekc.governor.live.governed_job import AttachedJob, CommandJob, CommandStartError
    from ekc.governor.protocols import Settings
    from ekc.governor.request import GovernorRequest

    gpu_names = tuple(options["gpu"])
    if gpu_names:
        from ekc.governor.live import gpus

        # A driver that fails must not keep the job from running: the failure is reported when it runs.
        with suppress(ActuatorError):
            gpu_names = tuple(gpus.resolve_gpus(gpu_names))
    request = GovernorRequest(
        policy,
        gpus=gpu_names,
        gpus_of=options["gpus_of"],
        actuator=options["actuator"],
        advise=options["advise"],
        each=options["each"],
        previous_settings=Settings(options["sm_before"], options["memory_before"]),
        remember=check_memory_name(options),
        plan=options["plan"],
        model=options["model"],
    )
    try:
        job = CommandJob(command) if command else AttachedJob(pid or 0)
    except CommandStartError as problem:
        log(f"ekc: {problem}")
        raise click.exceptions.Exit(problem.exit_status) from problem
    from ekc.governor.live.governor_process import govern_job, make_nvml_probe_factory

    return govern_job(job, request, lines, make_nvml_probe_factory(options["steps"], lines.on_note))


def _govern_simulated(
    kind: str, policy: Policy, lines: GovernOutput, options: dict[str, Any]
) -> tuple[list[GovernorLog], SimulatedTruth | None]:
    """Govern a simulated job; returns its log and what is true of it. Advice alone has no truth to tell."""
    from ekc.governor.accounting import compute_truth
    from ekc.governor.advise import advise
    from ekc.governor.live.group import GovernedUnit, make_simulated_unit
    from ekc.governor.live.session import GovernorSession
    from ekc.governor.loop import govern as run_governor
    from ekc.governor.protocols import NullActuator
    from ekc.governor.response_model import load_model
    from ekc.governor.simulation.simulated_run import SimulatedRun

    policy = policy.for_unit(1)
    unit = make_simulated_unit(kind, options["card"], options["seed"], options["minutes"])
    if not options["advise"]:
        assert isinstance(unit.probe, SimulatedRun)
        file = _open_choice_file(policy, lines, options)
        model = options["model"] and load_model(options["model"])

        def run(probe: Probe, actuator: Actuator, hear: EventCallback) -> object:
            if file is None:
                return run_governor(probe, actuator, policy, hear, model=model)
            return run_governor(probe, actuator, policy, hear, file.read(), file.write, model)

        return GovernorSession([unit], run, lines).wait(), compute_truth(unit.probe, policy)
    nothing = NullActuator(unit.actuator.list_offered(), simulated=True)
    watched = GovernedUnit(unit.name, unit.probe, nothing)
    return GovernorSession([watched], lambda p, a, hear: advise(p, nothing, policy, hear), lines).wait(), None


def _open_choice_file(policy: Policy, lines: GovernOutput, options: dict[str, Any]) -> ChoiceFile | None:
    """The file of a simulated job's choices, if it has a name."""
    from ekc.governor.saved_choice import ChoiceFile, make_conditions

    name = check_memory_name(options)
    conditions = make_conditions(f"{options['card']} (simulated)", 1, "", policy)
    return None if name is None else ChoiceFile(name, conditions, lines.on_note)


def _open_metrics(target: str | None) -> GovernorMetrics | None:
    """Metrics, if asked for. Raises `InvalidInput`."""
    if target is None:
        return None
    from ekc.governor.live.metrics import GovernorMetrics

    return GovernorMetrics(target)


def _restore_settings() -> int:
    """Restore all leased settings; exit status 1 where something was left."""
    from ekc.devices.clocks.lease import restore_all

    restored = restore_all()
    print_result("\n".join(map(str, restored)) or "nothing to restore: no governor has left anything behind")
    return 1 if any(x.problem for x in restored) else 0


def _print_reports(
    logs: list[GovernorLog],
    tariff: Tariff,
    truth: SimulatedTruth | None,
    lines: GovernOutput,
    plot: Path | None,
    core_share: float | None = None,
    absence: str | None = None,
) -> None:
    """Print the report of each log, and plot it if asked for; without logs, `absence` is the reason."""
    from ekc.governor.live.job_report import build_report

    lines.finish([build_report(one, tariff, truth) for one in logs], core_share, absence)
    if plot is not None:
        from ekc.governor.live.job_plot import plot_log

        for number, governor_log in enumerate(logs):
            file = plot if number == 0 else plot.with_stem(f"{plot.stem}-{number}")
            try:
                plot_log(governor_log, file)
            except OSError as problem:
                log(f"ekc govern: --plot {file}: cannot be written ({problem.strerror})")
            else:
                log(f"ekc govern: wrote {file}")
