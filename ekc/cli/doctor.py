"""`ekc doctor`: the capabilities of this installation, and the reasons for those that are missing."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from ekc.cli.output import json_option, print_result
from ekc.errors import EkcError, InvalidInput
from ekc.version import __version__

_NVIDIA_PACKAGES = "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-ml-py"
_PACKAGES = ("numpy", "jinja2", "xgboost", *_NVIDIA_PACKAGES, "click", "rich")


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Print versions, NVRTC, GPUs and the measurements they allow, compile cache, simulated devices.

    Changes nothing. Status 1 without NVRTC.
    """
    facts = _collect_facts()
    lines = (f"{name:12}{_format_fact(value)}" for name, value in _flatten_gpus(facts).items())
    print_result(facts if as_json else "\n".join(lines))
    return 0 if facts["nvrtc"]["version"] else 1


def _collect_facts() -> dict[str, Any]:
    from ekc.cli.doctor_gpus import describe_gpus
    from ekc.devices.simulated.specs import SPECS

    nvrtc = _describe_nvrtc()
    return {
        "ekc": __version__,
        "python": f"{platform.python_version()} on {platform.platform(terse=True)}",
        "nvrtc": nvrtc,
        "gpu": describe_gpus(nvrtc["version"], nvrtc.get("archs", [])),
        "cache": _describe_cache(),
        "packages": {name: _find_version(name) for name in _PACKAGES},
        "simulated": {
            name: f"{spec.arch}, {spec.sms} SMs, fixed {spec.fixed_mhz} MHz" for name, spec in SPECS.items()
        },
    }


def _flatten_gpus(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with each GPU as an entry of its own, "gpu 0" and so on, after the facts of all GPUs."""
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        each = value.get("each", []) if isinstance(value, dict) else []
        flat[name] = {k: v for k, v in value.items() if k != "each"} if each else value
        flat |= {f"gpu {index}": one for index, one in enumerate(each)}
    return flat


def _describe_nvrtc() -> dict[str, Any]:
    from ekc.codegen import nvrtc

    try:
        return {"version": nvrtc.version(), "archs": list(nvrtc.list_supported_archs())}
    except EkcError as problem:
        return {"version": None, "reason": str(problem)}


def _describe_cache() -> dict[str, Any]:
    from ekc.cli.output import ensure_writable
    from ekc.codegen import cache

    folder = "none"
    try:
        folder = str(cache.find_folder())
        if reason := cache.explain_distrust(Path(folder)):
            return {"folder": folder, "writable": False, "reason": reason}
        return {"folder": str(ensure_writable(Path(folder))), "writable": True}
    except InvalidInput as problem:
        return {"folder": folder, "writable": False, "reason": str(problem)}


def _find_version(package: str) -> str:
    """The installed version of a package; xgboost is also distributed as xgboost-cpu."""
    for name in (package, f"{package}-cpu"):
        try:
            return f"{metadata.version(name)}{'' if name == package else f' ({name})'}"
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


def _format_fact(value: object) -> str:
    """A fact in one or several lines, indented under its name."""
    if not isinstance(value, dict):
        return str(value)
    lines = [f"{key} {', '.join(v) if isinstance(v, list) else v}" for key, v in value.items()]
    return ("\n" + " " * 12).join(lines)
