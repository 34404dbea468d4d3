"""Defaults of `ekc govern`: files, environment and command line, and what they may not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ekc.cli import govern_options
from ekc.cli.govern import govern
from tests.cli.conftest import CommandLine

SHORT = "govern --simulate compute --card h200 --minutes 2 --json -"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The files of the system and of the user, which do not exist yet, in place of those of this machine."""
    system, user = tmp_path / "etc" / "govern.toml", tmp_path / "config" / "ekc" / "govern.toml"
    for file in (system, user):
        file.parent.mkdir(parents=True)
    monkeypatch.setattr(govern_options, "SYSTEM_FILE", system)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return {"system": system, "user": user}


def find_objective(cli: CommandLine, words: str = "") -> str:
    """Objective with which a simulated job was governed."""
    out, _ = cli(f"{SHORT} {words}")
    return str(json.loads(out.splitlines()[0])["objective"])


def test_stronger_source_wins(
    cli: CommandLine, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert find_objective(cli) == "energy"
    files["system"].write_text('objective = "edp"\nseed = 3\n')
    assert find_objective(cli) == "edp"
    files["user"].write_text('objective = "ed2p"\n')
    assert find_objective(cli) == "ed2p"
    named = tmp_path / "named.toml"
    named.write_text('objective = "speed"\n')
    assert find_objective(cli, f"--config {named}") == "speed"
    monkeypatch.setenv("EKC_GOVERN_OBJECTIVE", "edp")
    assert find_objective(cli, f"--config {named}") == "edp"
    assert find_objective(cli, f"--config {named} --objective energy") == "energy"


def test_file_may_be_named_by_the_environment(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named.toml"
    named.write_text('objective = "speed"\n')
    monkeypatch.setenv("EKC_GOVERN_CONFIG", str(named))
    assert find_objective(cli) == "speed"


def test_price_flags_and_lists_come_from_a_file(cli: CommandLine, files: dict[str, Path]) -> None:
    files["user"].write_text('price = [0.3, "EUR"]\nintensity = 380\nquiet = true\ngpu = [0, 1]\n')
    out, err = cli(SHORT)
    (report,) = json.loads(out.splitlines()[-1])["reports"]
    assert (report["savings"]["currency"], report["savings"]["co2_g"] is None) == ("EUR", False)
    assert err == ""


def test_price_comes_from_the_environment(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKC_GOVERN_PRICE", "0.3 EUR")
    out, _ = cli(SHORT)
    assert json.loads(out.splitlines()[-1])["reports"][0]["savings"]["currency"] == "EUR"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-slowdwn = 0.03", "nearest is 'max-slowdown'"),
        ("max-slowdown = 'much'", "'much' is not a valid float"),
        ("max-slowdown = true", "a number or text is needed"),
        ("quiet = 1", "true or false is needed"),
        ("price = 0.3", "price = 0.3: a list of 2 is needed"),
        ("price = ['EUR', 0.3]", "'EUR' is not a valid float"),
        ("max-slowdown = [0.1]", "max-slowdown = [0.1]: one value is needed"),
        ("pid = 7", "no 'pid'"),
        ("restore = true", "no 'restore'"),
        ("steps = 'x'", "no 'steps'"),
        ("config = 'x'", "no 'config'"),
        ("[govern]\nquiet = true", "no 'govern'"),
        ("quiet = ", "no TOML"),
    ],
)
def test_bad_file_is_one_line(text: str, words: str, cli: CommandLine, files: dict[str, Path]) -> None:
    files["user"].write_text(text)
    line = cli.refusal(SHORT)
    assert words in line
    assert str(files["user"]) in line


def test_missing_named_file_is_refused(cli: CommandLine) -> None:
    assert "no/such.toml: the defaults cannot be read" in cli.refusal(f"{SHORT} --config no/such.toml")


def test_unknown_variable_is_refused_with_the_nearest(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKC_GOVERN_POWERCAP", "300")
    assert "nearest is 'EKC_GOVERN_POWER_CAP'" in cli.refusal(SHORT)


def test_variables_of_one_run_are_not_read(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PID", "SIMULATE", "RESTORE", "STEPS"):
        with monkeypatch.context() as here:
            here.setenv(f"EKC_GOVERN_{name}", "1")
            assert f"no 'EKC_GOVERN_{name}'" in cli.refusal(SHORT)


def test_every_name_of_a_key_is_that_of_its_variable() -> None:
    """`--gpu` is EKC_GOVERN_GPU: click makes the variable of the parameter's name."""
    for key, option in govern_options.list_configurable(govern).items():
        assert option.name == key.replace("-", "_")


def test_option_of_the_command_line_sets_a_limit_of_the_defaults_aside(
    cli: CommandLine, files: dict[str, Path]
) -> None:
    files["user"].write_text("power-cap = 400\n")
    assert find_objective(cli) == "speed"
    out, err = cli(f"{SHORT} --max-slowdown 0.03")
    assert json.loads(out.splitlines()[0])["objective"] == "energy"
    assert "--power-cap of the defaults is set aside: --max-slowdown is given" in err
    assert find_objective(cli, "--deadline 4m --remaining 120") == "energy"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--power-cap 300 --node-power-cap 900", "--power-cap and --node-power-cap: give one of them"),
        ("--power-cap 300 --deadline 2h --remaining 9", "give one of them"),
        ("--power-cap 300 --objective energy", "--power-cap goes with speed alone"),
        ("--power-cap 300 --min-saving 0.1", "--min-saving: --power-cap replaces it"),
        ("--power-cap 0", "power_cap_w: 0, finite watts above 0"),
        ("--deadline 2h", "say how much work is left"),
        ("--deadline 2h --remaining 60 --max-slowdown 0.1", "--deadline replaces it"),
        ("--deadline 2h --steps-total 100", "nothing counts the steps of a command"),
        ("--deadline soon --remaining 60", "--deadline soon: no length of time and no time"),
        ("--price 0.3 --quiet", "write 0.3 EUR"),
        ("--metrics 99999", "give a port from 1 to 65535"),
        ("--remember a/b", "a name is 1 to 100 letters"),
        ("--remember a --deadline 2h --remaining 60", "the work left decides; leave one of them out"),
    ],
)
def test_bad_combinations_are_one_line(words: str, error: str, cli: CommandLine) -> None:
    assert error in cli.refusal(f"{SHORT} {words}")
