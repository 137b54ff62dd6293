"""Usage: help, settings, mistakes on the command line, exit codes of the tests it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import COMMAND, environment, kernelgen, kernelgen_here, refused, refused_here

from kernelgen import __version__

COMMANDS = (
    "new",
    "optimize",
    "tune",
    "knowledge",
    "analyze",
    "report",
    "gate",
    "check",
    "bench",
    "list",
    "hardware",
    "doctor",
    "schema",
    "import",
    "kernelbench",
    "export",
)


def test_help_lists_every_command_and_imports_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", *COMMAND[1:], "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), text=True, capture_output=True, check=True)
    assert [name for name in COMMANDS if f"\n  {name} " not in done.stdout] == []
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "kernelgen.cli.app" in imported
    slow = {"torch", "triton", "openai", "pydantic", "jinja2", "yaml", "numpy", "rich"}
    assert {name.split(".")[0] for name in imported} & slow == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, tmp_path: Path) -> None:
    done = kernelgen_here(name, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"Usage: kernelgen {name}" in done.stdout


def test_version(tmp_path: Path) -> None:
    assert kernelgen("--version", cwd=tmp_path).stdout == f"kernelgen {__version__}\n"


def test_no_arguments_show_the_help(tmp_path: Path) -> None:
    done = kernelgen(cwd=tmp_path)
    assert done.returncode == 0
    assert "Commands:" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["optimize", "softmax", "--rounds", "0"], "error: --rounds: must be a whole number from 1 to 20, not '0'"),
        (["optimize", "softmax", "--rounds", "x"], "error: --rounds: must be a whole number from 1 to 20, not 'x'"),
        (
            ["optimize", "softmax", "--adopt", "--rounds", "1"],
            "error: --adopt needs a value after it, and --rounds is another option",
        ),
        (
            ["optimize", "softmax", "--adopt", "--help"],
            "error: --adopt needs a value after it, and --help is another option",
        ),
        (["optimize", "softmax", "--max-minutes", "no"], "error: --max-minutes: must be a number of minutes above 0, "),
        (["optimise", "softmax"], "error: No such command 'optimise'. Did you mean 'optimize'?"),
        (["new", "softmax", "--frce"], "error: No such option: --frce (Possible options: "),
        (["check"], "error: which operator? A NAME, a glob"),
        (["check", "sofmax"], "error: there is no operator 'sofmax'; did you mean 'softmax'?"),
        (["check", "nothing_like_it"], "error: there is no operator 'nothing_like_it'; `kernelgen list` shows "),
        (
            ["check", "softmax"],
            "error: softmax has a spec but no kernel in operators/ yet: run `kernelgen new softmax`",
        ),
        (
            ["export", "softmax"],
            "error: softmax has a spec but no kernel in operators/ yet: run `kernelgen new softmax`",
        ),
        (["bench"], "error: which operator? A NAME, a glob such as 'quantize_*', a spec's file, or --all"),
        (["bench", "softmax", "--self-test"], "error: --self-test tests the timer itself and takes no NAME"),
        (["bench", "softmax", "--runs", "3"], "error: --runs needs --self-test"),
        (["check", "softmax", "--seed", "x"], "error: --seed: must be a whole number, 0 or more, not 'x'"),
        (["tune", "softmax", "--replay", "spaces"], "error: --replay takes no NAME"),
        (["tune", "softmax", "--seeds", "3"], "error: --seeds needs --replay"),
        (["bench", "softmax", "--min-speedup", "nan"], "error: --min-speedup: must be a number above 0, not 'nan'"),
        (["new"], "error: new needs a SPEC, or --check"),
        (["new", "softmx.yaml"], "error: softmx.yaml: no such file, and no shipped spec of that name"),
        (["optimize", "softmx"], "error: softmx: no such file, and no shipped spec of that name"),
        (["hardware", "--arch", "sm_9"], "error: --arch sm_9: unknown architecture; did you mean sm_90?"),
        (["knowledge", "rebuild", "."], "error: nothing in . has rows of measurements"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], line: str, tmp_path: Path) -> None:
    assert refused_here(*arguments, cwd=tmp_path).startswith(line)


def test_settings_come_from_the_environment_and_the_project(tmp_path: Path) -> None:
    variable = refused("optimize", "softmax", cwd=tmp_path, KERNELGEN_ROUNDS="21")
    assert variable == "error: KERNELGEN_ROUNDS: must be a whole number from 1 to 20, not '21'"
    (tmp_path / "pyproject.toml").write_text("[tool.kernelgen]\nroundz = 3\n")
    project = refused("optimize", "softmax", cwd=tmp_path)
    assert project.endswith("[tool.kernelgen] roundz: no such setting, did you mean 'rounds'?")


def test_schema_is_one_json_document(tmp_path: Path) -> None:
    document = json.loads(kernelgen("schema", cwd=tmp_path).stdout)
    assert {"name", "inputs", "outputs", "reference"} <= document["properties"].keys()


def test_hardware_shows_the_machine_and_the_table(tmp_path: Path) -> None:
    shown = kernelgen("hardware", cwd=tmp_path, NO_COLOR="1").stdout
    assert "device" in shown
    assert "4.80 TB/s" in shown  # the H200
    document = json.loads(kernelgen("hardware", "--arch", "sm_80", "--device", "cpu", "--json", cwd=tmp_path).stdout)
    assert document["here"]["arch"] == "sm_80"
    assert [facts["key"] for facts in document["facts"]] == ["a100"]


def operator(folder: Path, accuracy: str) -> None:
    """A quartet whose accuracy test is the given source."""
    quartet = folder / "operators" / "some_group" / "op_triton.py"
    quartet.parent.mkdir(parents=True)
    quartet.write_text("")
    quartet.with_name("op_accuracy.py").write_text(accuracy)


@pytest.mark.parametrize("code", [0, 1, 3])
def test_check_returns_what_the_accuracy_test_returns(code: int, tmp_path: Path) -> None:
    operator(tmp_path, f"import sys\nprint(sys.argv[1:])\nraise SystemExit({code})\n")
    done = kernelgen("check", "op", "--seed", "7", "--verbose", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, "")
    assert "'--verbose', '--seed', '7'" in done.stdout


def test_a_test_that_dies_is_one_clear_line(tmp_path: Path) -> None:
    operator(tmp_path, "import os\nos.abort()\n")
    line = refused("check", "op", cwd=tmp_path, code=1)
    assert line == "error: operators/some_group/op_accuracy.py: the process died: SIGABRT"


def test_the_cpu_device_hides_the_gpu(tmp_path: Path) -> None:
    operator(tmp_path, "import os\nprint(os.environ['TRITON_INTERPRET'], repr(os.environ['CUDA_VISIBLE_DEVICES']))\n")
    assert kernelgen("check", "op", "--device", "cpu", cwd=tmp_path).stdout == "1 ''\n"


def test_interrupted(tmp_path: Path) -> None:
    operator(tmp_path, "import time\nprint('started', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [*COMMAND, "check", "op"],
        cwd=tmp_path,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # a shell without job control starts what it runs in the background with interrupts ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted", errors


def test_bench_hands_its_flags_to_the_performance_test(tmp_path: Path) -> None:
    operator(tmp_path, "")
    script = tmp_path / "operators" / "some_group" / "op_performance.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nraise SystemExit(1)\n")
    done = kernelgen("bench", "op", "--min-speedup", "1.5", "--only", "-1", "--require-gpu", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == "['--only=-1', '--json', '--require-gpu', '--min-speedup', '1.5']\n"


def test_the_self_test_needs_a_gpu(tmp_path: Path) -> None:
    done = kernelgen("bench", "--self-test", "--runs", "1", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert "no GPU" in done.stdout
    assert done.stderr == ""
