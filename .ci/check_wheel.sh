#!/usr/bin/env bash
# Builds the sdist and the wheel, and uses the wheel as someone who has nothing but it.
#
#     .ci/check_wheel.sh [FOLDER]
#
# The wheel goes into an empty environment outside the checkout. There run: the first tune command of the README with
# few trials, `ekc doctor`, `ekc course list`, and the Python blocks of the tutorial. That takes 30 s on 2 idle cores once uv has the
# packages in its cache; before, the download of the dependencies comes on top. FOLDER gets sdist and wheel; by default they are
# deleted. PYTHON chooses the interpreter. Environments are made by uv, which is installed if it is not on the PATH.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${1:-$work/dist}
python=$(command -v "${PYTHON:-python3}")
step() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

step "tools"
source "$root/.ci/find_uv.sh" "$work"
uv venv -q --python "$python" "$work/tools"
uv pip install -q --python "$work/tools" build twine markdown-it-py mdit-py-plugins nbformat

step "sdist, and the wheel from it"
"$work/tools/bin/python" -m build --installer uv --outdir "$out" "$root" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
NO_COLOR=1 "$work/tools/bin/twine" check --strict "$out"/ekc-*
wheel=$(ls "$out"/ekc-*.whl)
du -h "$out"/ekc-*

step "install the wheel"
uv venv -q --python "$python" "$work/env"
uv pip install -q --python "$work/env" "$wheel"
packages=$("$work/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "ekc alone: $(du -sm "$packages/ekc" | cut -f1) MB, with all dependencies: $(du -sm "$packages" | cut -f1) MB; the largest:"
{ du -sm "$packages"/*; du -sm "$packages"/nvidia/*; } | sort -rn | sed -n "s|$packages/||; 1,8p"

step "commands and blocks of the pages"
mkdir "$work/home" "$work/elsewhere"
cd "$work/elsewhere"
"$work/tools/bin/python" - "$root" <<'EOF'
import re
import sys
from pathlib import Path

root = Path(sys.argv[1])
sys.path.insert(0, str(root / "docs"))
from _site.pages import find_blocks

tutorial = find_blocks((root / "docs" / "learn" / "tutorial.md").read_text())
cells = [b.source for b in tutorial if b.language == "python" and not b.skip_reason]
Path("tutorial.py").write_text("\n".join(cells))

shell = [b.source for b in find_blocks((root / "README.md").read_text()) if b.language == "sh"]
command = next(filter(None, (re.search(r"\bekc tune [^&|;\n]+", source) for source in shell)))[0]
Path("tune.sh").write_text(re.sub(r" --(trials|effort) \w+", "", command).strip() + " --trials 8\n")
EOF
outside() { env -i "HOME=$work/home" "PATH=$work/env/bin:/usr/bin:/bin" "$@"; }

step "ekc doctor"
outside ekc doctor

step "the lessons of the course"
outside ekc course list | tail -n 1

step "$(cat tune.sh)"
outside sh -e tune.sh

step "the tutorial"
# A notebook has IPython, which shows the pictures; the wheel does not need it.
uv pip install -q --python "$work/env" ipython
# What runs must be the installed ekc, and not the checkout.
outside python -c "import ekc; assert ekc.__file__.startswith('$work/env/'), ekc.__file__"
outside python tutorial.py | tail -n 12

step "passed"
