"""The Jinja2 environment: templates in, CUDA text out."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2


def indent_lines(text: str) -> str:
    """Every line one level in, blank ones dropped."""
    return "".join(f"    {line}\n" for line in text.splitlines() if line.strip())


@cache
def make_environment() -> jinja2.Environment:
    """Templates of this package; an undefined name is an error, not an empty string."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("ekc.codegen"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters["indented"] = indent_lines
    return env


def render_template(template: str, **values: Any) -> str:
    """A template filled in."""
    return make_environment().get_template(template).render(**values)
