#!/usr/bin/env bash
# Tests the versions of Python that pyproject.toml names, and the lowest versions of all dependencies.
#
#     .ci/check_versions.sh [VERSION ...]     e.g. 3.12 3.13 lowest; by default 3.11 3.12 3.13 lowest
#
# Each gets an environment of its own and runs a fast subset of the tests, about 1 minute on 2 cores. `lowest` is
# Python 3.11 with the lowest version that pyproject.toml allows of each direct dependency. Interpreters come from
# the PATH or from pyenv; one that is missing is skipped with a line. Exit status 1 where tests fail.
set -uo pipefail

cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TESTS=(
    tests/test_package.py tests/test_contract.py
    tests/cli/test_bad_input.py tests/cli/test_check.py tests/cli/test_doctor.py tests/cli/test_main.py
    tests/cli/test_run.py
    tests/codegen/test_generate.py tests/codegen/test_golden.py tests/codegen/test_nvrtc.py
    tests/codegen/test_types.py
    tests/devices/metering tests/devices/recording tests/devices/test_open.py
    tests/devices/simulated/test_latency.py
    tests/emulator/test_by_hand.py tests/emulator/test_launch.py
    tests/governor/test_loop.py
    tests/ir/test_bad_input.py tests/ir/test_schedules.py
    tests/ptx/test_parser.py
    tests/runtime/test_arrays.py tests/runtime/test_kernel.py tests/runtime/test_torch_import.py
    tests/search/cost_model/test_acquisition.py tests/search/cost_model/test_feature_process.py
    tests/search/cost_model/test_power_model.py tests/search/cost_model/test_surrogate.py
    tests/search/database/test_database.py
    "tests/examples/test_examples.py::test_example_prints_what_it_says[meter_script.py]"
    "tests/examples/test_examples.py::test_example_prints_what_it_says[replay_recording.py]"
    "tests/examples/test_examples.py::test_example_prints_what_it_says[tune_matmul.py]"
)
TEST_PACKAGES=(array-api-strict hypothesis pytest pytest-xdist)
# What the lowest versions do otherwise, and ekc need not mind:
LOWEST_DESELECTED=(
    # cuda-bindings 12.9 has a .pth file that loads `cuda` whenever Python starts.
    --deselect=tests/test_package.py::test_import_loads_nothing_heavy
    --deselect=tests/devices/test_open.py::test_import_of_the_package_is_light
    # NVRTC 13.0 takes 124 registers for this kernel, not 129, so that two blocks fit an SM and hide the barriers.
    --deselect=tests/devices/simulated/test_latency.py::test_second_buffer_hides_the_loads
)

find_python() {
    local found
    found=$(command -v "python$1") && "$found" --version >/dev/null 2>&1 && { echo "$found"; return; }
    found=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python 2>/dev/null | sort -V | tail -n 1)
    [ -n "$found" ] && echo "$found"
}

source "$root/.ci/find_uv.sh" "$work" || exit 1

check() {
    local version=$1 python=$2 env="$work/$1"
    shift 2
    uv venv -q --python "$python" "$env" || return 1
    uv pip install -q --python "$env" "$@" -e "$root" || return 1
    uv pip install -q --python "$env" "${TEST_PACKAGES[@]}" || return 1
    uv pip list -q --python "$env" 2>/dev/null | grep -E '^(click|cuda-python|jinja2|ml-dtypes|numpy|nvidia-cuda-nvrtc|nvidia-ml-py|rich|xgboost) ' |
        tr -s ' ' | paste -sd ',' | sed 's/,/, /g'
    local deselected=()
    [ "$version" = lowest ] && deselected=("${LOWEST_DESELECTED[@]}")
    "$env/bin/python" -m pytest -q -n 2 --dist worksteal -p no:cacheprovider "${deselected[@]}" "${TESTS[@]}"
}

[ $# -gt 0 ] || set -- 3.11 3.12 3.13 lowest
results=() failed=0
for version in "$@"; do
    number=$version options=()
    [ "$version" = lowest ] && number=3.11 options=(--resolution lowest-direct)
    python=$(find_python "$number") || {
        results+=("$version: skipped, python$number is neither on the PATH nor in pyenv")
        continue
    }
    echo "== $version ($("$python" --version))"
    start=$SECONDS
    if check "$version" "$python" "${options[@]}"; then
        results+=("$version: passed in $((SECONDS - start)) s")
    else
        results+=("$version: FAILED") failed=1
    fi
done
printf '%s\n' "" "${results[@]}"
exit "$failed"
