"""A spec that says `family: custom`: its first kernel, from a language model, judged before any file is written."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from kernelgen import __version__, custom, frontend, generation, journal, render
from kernelgen.analysis import work
from kernelgen.custom import Answer
from kernelgen.devices import Device
from kernelgen.evaluate import Candidate, Evaluator, Failed, evaluator
from kernelgen.evaluate.base import failed
from kernelgen.families import check_names
from kernelgen.files import write_atomic
from kernelgen.generation import Written
from kernelgen.journal import Journal, locked
from kernelgen.llm import Caps, spent
from kernelgen.llm.exchange import Asks
from kernelgen.llm.whole import NoneRightError, write
from kernelgen.optimization import search
from kernelgen.optimization.bench import families_compiler
from kernelgen.outcomes import Evaluation, evaluation_from_json, to_json
from kernelgen.spec.model import OperatorSpec

FOLDER = "written"
"""Below the operator's logs: the journals of its first kernels."""


def first_kernel(
    spec: OperatorSpec, device: Device, client: Asks, caps: Caps, root: Path, logs: Path, *, force: bool = False
) -> tuple[Written, str]:
    """Have the kernel written, judged on `device` and put into its files; also what it cost, in words.

    Goes on where an earlier call was cut short; no reply is paid twice. Raises SpecError for a reference that does not
    do what the spec says, before anything is asked, and LanguageModelError where there is no right kernel: then no file
    of the operator is written.
    """
    check_names(spec)
    if not force:
        generation.check_unedited([generation.folder_of(spec, root)])
    frontend.check_runs(spec)
    folder = logs / spec.name / FOLDER
    with locked(folder):
        record = _open(spec, device, client, folder)
        try:
            answer = _answer(spec, device, client, caps, record)
            done = generation.new(spec, root, force=force, table=custom.table_of(spec, answer))
            record.append("finished", {"reason": "written"})
            return done, spent(record.records()).line()
        except NoneRightError as error:
            record.append("finished", {"reason": str(error)})
            raise
        finally:
            record.close()


def _open(spec: OperatorSpec, device: Device, client: Asks, folder: Path) -> Journal:
    """The journal of what is asked: an unfinished one of the same spec, device and model, or a new one."""
    key = journal.resume_key(
        spec=spec.sha256, version=__version__, device=device.describe(), model=client.endpoint.describe()
    )
    record = Journal.open(journal.unfinished(folder, key) or folder / journal.run_name(key))
    if not record.records():
        record.append("run", {"key": key, "operator": spec.name, "spec": spec.sha256, "version": __version__})
    return record


def _answer(spec: OperatorSpec, device: Device, client: Asks, caps: Caps, record: Journal) -> Answer:
    plan = custom.plan_of(spec)
    with tempfile.TemporaryDirectory(prefix="kernelgen-") as quartet:
        staged = Path(quartet)
        with evaluator(device, plan, staged, record.candidates, partial(work, plan)) as run:
            return write(
                spec, device.facts, client, record, caps, lambda answer: _judged(spec, answer, run, staged, record)
            )


def _judged(spec: OperatorSpec, answer: Answer, run: Evaluator, staged: Path, record: Journal) -> Evaluation:
    """What became of a kernel: compiled for the device, then the accuracy test; once for each source."""
    plan = custom.plan_of(spec, custom.table_of(spec, answer))
    cases = tuple({case.dtypes: case for case in spec.performance}.values())
    made = search.current(plan, families_compiler(), cases, what=answer.idea)
    for known in record.records("checked"):
        if known.data["hash"] == made.source_hash:
            return evaluation_from_json(known.data["evaluation"])
    if not any(staged.iterdir()):
        for name, text in render.quartet(plan).items():
            write_atomic(staged / name, text)
    found = _tested(made, run)
    record.append("checked", {"hash": made.source_hash, "evaluation": to_json(found)})
    return found


def _tested(made: Candidate, run: Evaluator) -> Evaluation:
    try:
        run.facts(made, made.cases)
    except Failed as failure:
        return failed(made, failure)
    return run.verify(made, large=run.measures)
