"""The npu device without an NPU: its facts, its errors, and what the profilers of an Ascend machine write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernelgen import devices
from kernelgen.cli import main
from kernelgen.devices import facts, msprof, npu
from kernelgen.errors import NoDeviceError, UsageError

AN_NPU = npu.Npu("Ascend910B3", 65_452_113_920, 20, 40, "8.5.0")

KERNEL_DETAILS = """\
Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Block Dim,aicore_time(us),aic_mac_ratio,aic_scalar_ratio,aic_mte2_ratio,aiv_time(us),aiv_vec_ratio,aiv_scalar_ratio,aiv_mte2_ratio,aiv_mte3_ratio,cube_utilization(%)
1,MatMulV2,MatMulV2,AI_CORE,"1736413971558972.912\t",185.504,16,183.87,0.824,0.479,0.964,0,0,0,0,0,79.295
1,softmax_kernel,softmax_kernel,AI_VECTOR_CORE,"1736413971559972.912\t",20.5,40,0,0,0,0,19.0,0.31,0.12,0.85,0.4,0
1,softmax_kernel,softmax_kernel,AI_VECTOR_CORE,"1736413971559999.000\t",21.5,40,0,0,0,0,20.0,0.31,0.12,0.85,0.4,0
1,hcom_broadcast_0,hcom_broadcast_,HCCL,1699529622793969.5,N/A,0,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A
"""
OP_SUMMARY = """\
Device_id,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Block Num,aiv_time(us),aiv_scalar_ratio
0,relu_kernel,relu_kernel,AI_VECTOR_CORE,1000000.000,42.5,32,40,0.995
"""
OP_STATISTIC = "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)\n0,relu_kernel,MIX_AIC,2,84.6,42.1,42.3,42.4,100\n"
OP_FILES = {
    "OpBasicInfo.csv": "Op Name,Op Type,Task Duration(us),Block Dim,Mix Block Dim,\nrelu_kernel,vector,5.74,2,0,\n",
    "PipeUtilization.csv": (
        "block_id,sub_block_id,aic_time(us),aic_cube_ratio,aiv_time(us),aiv_vec_ratio,aiv_scalar_ratio,aiv_mte2_ratio,\n"
        "0,cube0,NA,NA,NA,NA,NA,NA,\n0,vector0,NA,NA,1.0,0.2,0.4,0.6,\n1,vector0,NA,NA,3.0,0.4,0.4,0.2,\n"
    ),
    "Memory.csv": (
        "block_id,sub_block_id,aic_main_mem_read_bw(GB/s),aiv_main_mem_read_bw(GB/s),aiv_main_mem_write_bw(GB/s),\n"
        "0,vector0,NA,10.0,4.0,\n1,vector0,NA,11.0,5.0,\n"
    ),
}


@pytest.fixture
def no_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu, "_probe", lambda: (None, "no NPU"))


@pytest.mark.parametrize("device", facts.NPU_TABLE, ids=lambda d: d.key)
def test_the_table_of_the_family(device: facts.NpuFacts) -> None:
    assert facts.npu_by_name(device.key) is device
    assert facts.npu_by_name(device.compiler_target) is device
    assert device.vector_cores == 2 * device.cube_cores
    assert device.ub_bytes == 196608
    assert device.ub_bytes % device.ub_alignment == 0
    assert 0.5e12 < device.dram_bytes_per_s < device.l2_bytes_per_s < 1e13
    assert device.fp32_flops < device.fp16_tensor_flops < 1e15


def test_names_of_torch_npu_and_of_targets() -> None:
    found = facts.npu_by_name("ascend910b3")
    assert found is not None
    assert (found.cube_cores, found.vector_cores, found.compiler_target) == (20, 40, "Ascend910B3")
    assert facts.npu_by_name("Ascend910B4_1") is facts.NPU_TABLE[-1]
    assert facts.npu_by_name("ascend910a") is None


@pytest.mark.usefixtures("no_npu")
def test_without_an_npu_a_target_is_compiled_and_predicted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in (devices.find("npu", "ascend910b3"), devices.find(None, "ascend910b3")):
        assert (device.name, device.measures, device.arch) == ("npu", False, "ascend910b3")
        assert "predicted for Huawei Ascend 910B3" in device.describe()["device"]
    with pytest.raises(NoDeviceError, match="--target ascend910b3") as error:
        devices.find("npu")
    assert error.value.exit_code == 3
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="did you mean ascend910b3"):
        devices.find("npu", "ascend910b33")
    with pytest.raises(UsageError, match="--arch ascend910b3"):
        devices.find("cpu", "ascend910b3")


def test_an_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own core counts hold; another target than the one here is compiled for and not measured."""
    monkeypatch.setattr(npu, "_probe", lambda: (AN_NPU, ""))
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "3")
    device = devices.find("npu")
    assert device.measures
    assert device.npu.memory_bytes == AN_NPU.memory_bytes
    assert ("ASCEND_RT_VISIBLE_DEVICES", "3") in device.environment
    assert not devices.find("npu", "ascend910b4").measures
    monkeypatch.setattr(npu, "_probe", lambda: (npu.Npu("Ascend910C", 1, 25, 50, ""), ""))
    assert devices.find("npu").npu.vector_cores == 50


def test_why_there_is_no_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = npu._probe.__wrapped__
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    assert "hides every NPU" in probe()[1]
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([self / "davinci0"]))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert probe() == (None, "an NPU is here, but torch-npu is not installed")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    broken = subprocess.CompletedProcess([], 1, "", "Traceback\nImportError: libhccl.so: cannot open\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: broken)
    assert probe()[1].endswith("ImportError: libhccl.so: cannot open")


@pytest.mark.usefixtures("no_npu")
def test_the_hardware_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hardware", "--target", "ascend910b3"]) == 0
    shown = capsys.readouterr().out
    assert "unified buffer a vector core" in shown
    assert "SMs" not in shown
    assert main(["hardware", "--device", "npu"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("no_npu")
def test_a_slip_in_the_name_of_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`new` tells of it with the names of NPUs, as `check` does."""
    monkeypatch.chdir(tmp_path)
    for command in (["new", "relu.yaml"], ["check", "relu"]):
        assert main([*command, "--target", "ascend910b5"]) == 2
        assert "--target ascend910b5: unknown chip; did you mean ascend910b4?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_kernel_details() -> None:
    """A library's kernel beside ours, a tab in a time, N/A, and the vector core's ratios from a vector kernel's rows."""
    found = msprof.kernels(KERNEL_DETAILS)
    assert [k.name for k in found] == ["MatMulV2", "softmax_kernel", "softmax_kernel"]
    assert dict(found[0].busy) == {"cube": 0.824, "scalar": 0.479, "mte2": 0.964}
    assert dict(found[1].busy) == {"vector": 0.31, "scalar": 0.12, "mte2": 0.85, "mte3": 0.4}
    assert found[1].limit() == "mte2"
    assert found[1].block_dim == 40
    assert msprof.median_us(found, ["softmax_kernel"]) == 21.0
    with pytest.raises(ValueError, match="no run of relu"):
        msprof.median_us(found, ["relu"])


def test_a_long_name_is_cut_from_the_left() -> None:
    name = "a_kernel_with_a_name_" * 4
    one = msprof.KernelProfile(name[-49:], "AI_VECTOR_CORE", 1.0, 1)
    assert msprof.of_kernel([one], name) == (one,)


def test_the_other_files(tmp_path: Path) -> None:
    (summary,) = msprof.kernels(OP_SUMMARY)
    assert (summary.name, summary.duration_us, summary.block_dim, summary.limit()) == (
        "relu_kernel",
        42.5,
        32,
        "scalar",
    )
    for name, text in OP_FILES.items():
        (tmp_path / name).write_text(text)
    profile = msprof.op_files(tmp_path)
    assert (profile.duration_us, profile.read_gb_s, profile.write_gb_s) == (5.74, 21.0, 9.0)
    assert dict(profile.busy) == pytest.approx({"vector": 0.35, "scalar": 0.4, "mte2": 0.3})
    with pytest.raises(ValueError, match="not the file that was expected"):
        msprof.kernels(OP_STATISTIC)
    with pytest.raises(ValueError, match=r"no OpBasicInfo\.csv"):
        msprof.op_files(tmp_path / "elsewhere")


def test_shares_by_kind_of_arithmetic() -> None:
    """A file with those has no share of the whole unit: int32 counts as much as fp32, and a unit is never over-busy."""
    columns = "aiv_vec_fp32_ratio,aiv_vec_fp16_ratio,aiv_vec_int32_ratio,aiv_vec_misc_ratio"
    text = (
        f"Name,Type,Accelerator Core,Duration(us),Block Dim,aicore_time(us),aic_mac_fp16_ratio,aiv_time(us),{columns}\n"
    )
    text += "ZerosLike46,ZerosLike,AI_VECTOR_CORE,608.0,48,0,0,587.0,0,0,0.0822,0\n"
    text += "Cast66,Cast,AI_VECTOR_CORE,3.1,9,0,0,1.8,0.5,0.25,0.25,0.05\n"
    assert [dict(run.busy) for run in msprof.kernels(text)] == [{"vector": 0.0822}, {"vector": 1.0}]


def test_files_of_msprof_op_below_a_folder(tmp_path: Path) -> None:
    """Where several launches are profiled each has a folder, and a time in its files' names: the last is meant."""
    for number, duration in ((0, "9.0"), (1, "5.74")):
        folder = tmp_path / "OPPROF_20251121_ABC" / "relu_kernel" / str(number)
        folder.mkdir(parents=True)
        for name, text in OP_FILES.items():
            written = text.replace("5.74", duration)
            (folder / name.replace(".csv", f"_2025112112000{number}.csv")).write_text(written)
    profile = msprof.op_files(tmp_path)
    assert (profile.duration_us, profile.read_gb_s) == (5.74, 21.0)
    assert dict(profile.busy) == pytest.approx({"vector": 0.35, "scalar": 0.4, "mte2": 0.3})


def test_nothing_heavy_is_imported() -> None:
    code = "import sys; from kernelgen import devices; devices.find('npu', 'ascend910b3'); "
    code += "sys.exit(bool({'torch', 'torch_npu', 'triton'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
