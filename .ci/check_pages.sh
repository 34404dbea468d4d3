#!/usr/bin/env bash
# The half of .ci/run beside the tests: the checkers, the site, and the wheel. It makes an environment in `.venv` of
# the folder it is in, and writes docs/project and build/site, so .ci/run calls it in a copy of the checkout.
set -euo pipefail

cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source .ci/find_uv.sh "$work"
uv venv -q --clear --python "$(command -v python3)" .venv
uv pip install -q --python .venv -e '.[dev,docs]'
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/lint-imports
.venv/bin/python .ci/check_words.py
.venv/bin/python .ci/check_structure.py
.venv/bin/python .ci/check_budget.py
.venv/bin/python .ci/check_reachability.py
.venv/bin/python .ci/check_prose.py
.venv/bin/python .ci/check_blocks.py
.venv/bin/pytest -q tests/docs/test_reference.py

# The site: every block of Python and shell on its pages is executed once, here. A warning is an error.
.venv/bin/sphinx-build -q -W --keep-going -j 2 docs build/site

# The wheel, in an empty environment outside the checkout; prints the installed size.
bash .ci/check_wheel.sh
