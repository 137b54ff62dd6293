"""Every attack is stopped, plain and disguised, and no honest kernel is: the table of docs/trust.md is made from this."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import table
import torch
from arena import verdict
from collection import ATTACKS, Attack
from honest import honest

HONEST = list(honest())
HERE = [a for a in ATTACKS if not a.gpu]
THERE = [a for a in ATTACKS if a.gpu]


@pytest.mark.parametrize("form", ["plain", "disguised"])
@pytest.mark.parametrize("attack", HERE, ids=lambda a: a.name)
def test_an_attack_is_stopped(attack: Attack, form: str, tmp_path: Path) -> None:
    answer, stop = getattr(attack, form)
    assert verdict(attack.operator, answer, tmp_path).startswith(stop)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["plain", "disguised"])
@pytest.mark.parametrize("attack", THERE, ids=lambda a: a.name)
def test_an_attack_that_only_a_gpu_shows_is_stopped(attack: Attack, form: str, tmp_path: Path) -> None:
    answer, stop = getattr(attack, form)
    # in a process of its own: an illegal access spoils every later call in the one that made it
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = pool.submit(partial(verdict, attack.operator, answer, tmp_path, large=True)).result()
    assert found.startswith(stop)


@pytest.mark.parametrize(("name", "operator", "answer"), HONEST, ids=[name for name, _, _ in HONEST])
def test_an_honest_kernel_is_accepted(name: str, operator: str, answer: dict[str, object], tmp_path: Path) -> None:
    assert verdict(operator, answer, tmp_path, hidden=torch.cuda.is_available()) == "accepted"


def test_the_collection_is_as_large_as_it_claims() -> None:
    assert len({a.name for a in ATTACKS}) == len(ATTACKS) >= 25
    assert len(HONEST) >= 50
    assert all(a.plain[0] != a.disguised[0] for a in ATTACKS)


def test_the_table_of_the_document_is_what_the_tests_say() -> None:
    assert table.DOCUMENT.read_text("utf-8") == table.document(), "run `python tests/attacks/table.py`"
