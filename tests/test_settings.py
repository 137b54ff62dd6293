from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from kernelgen.errors import UsageError
from kernelgen.settings import MAX_ROUNDS, Settings, nearest_pyproject, resolve


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[tool.kernelgen]\nrounds = 3\nmax-minutes = 2\ndevice = "cpu"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    return inner


def test_each_layer_beats_the_one_below(project: Path) -> None:
    assert resolve({}, env={}, start=project) == Settings(device="cpu", rounds=3, max_minutes=2.0)
    env = {"KERNELGEN_ROUNDS": "7"}
    assert resolve({}, env=env, start=project).rounds == 7
    assert resolve({"rounds": "9"}, env=env, start=project).rounds == 9
    assert resolve({"rounds": None}, env=env, start=project).rounds == 7


def test_without_any_layer_the_defaults_hold(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    assert resolve({}, env={}, start=tmp_path) == Settings()


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert resolve({}, env={"KERNELGEN_ARCH": ""}, start=tmp_path).arch is None


def test_the_nearest_pyproject_counts(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\n")
    assert nearest_pyproject(project) == project / "pyproject.toml"
    assert resolve({}, env={}, start=project) == Settings()


@pytest.mark.parametrize("text", ["true", "1", "YES"])
def test_flags_can_come_from_the_environment(tmp_path: Path, text: str) -> None:
    assert resolve({}, env={"KERNELGEN_STOP_AT_TARGET": text}, start=tmp_path).stop_at_target is True


@pytest.mark.parametrize("value", ["0", "x", "", "-1", "1.5", str(MAX_ROUNDS + 1), True])
def test_rounds_must_be_a_number_in_range(tmp_path: Path, value: object) -> None:
    with pytest.raises(UsageError, match=f"^--rounds: must be a whole number from 1 to {MAX_ROUNDS}, not "):
        resolve({"rounds": value}, env={}, start=tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_minutes", "0", "--max-minutes: must be a number of minutes above 0, not '0'"),
        ("max_minutes", "nan", "--max-minutes: must be a number of minutes above 0, not 'nan'"),
        ("jobs", "none", "--jobs: must be a whole number, 1 or more, not 'none'"),
        ("device", "", "--device: must be a name, not ''"),
        ("stop_at_target", "maybe", "--stop-at-target: must be true or false, not 'maybe'"),
    ],
)
def test_a_bad_flag_is_one_clear_line(tmp_path: Path, name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({name: value}, env={}, start=tmp_path)
    assert str(caught.value) == message


def test_a_bad_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^KERNELGEN_JOBS: must be a whole number, 1 or more, not '0'$"):
        resolve({}, env={"KERNELGEN_JOBS": "0"}, start=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.kernelgen]\nround = 3\n", "[tool.kernelgen] round: no such setting, did you mean 'rounds'?"),
        ("[tool.kernelgen]\nrounds = true\n", "[tool.kernelgen] rounds: must be a whole number from 1 to 20, not True"),
        ("[tool.kernelgen]\ndevice = 3\n", "[tool.kernelgen] device: must be a name, not 3"),
        ("[tool.kernelgen\n", "cannot be read"),
    ],
)
def test_a_bad_pyproject_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        resolve({}, env={}, start=tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_setting_can_be_given_in_every_layer(tmp_path: Path) -> None:
    good = {"device": "cpu", "arch": "sm_90", "stop_at_target": "true", "stream": "true", "base_url": "http://host/v1"}
    good |= {"verify": "false", "lang": "zh"}
    for field in fields(Settings):
        value = good.get(field.name, "2")
        from_flag = resolve({field.name: value}, env={}, start=tmp_path)
        from_variable = resolve({}, env={f"KERNELGEN_{field.name.upper()}": value}, start=tmp_path)
        assert from_flag == from_variable != Settings()
