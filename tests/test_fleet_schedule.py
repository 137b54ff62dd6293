"""The scheduler over random events: who works on what, what is set aside, and that the queue drains."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from kernelgen.fleet.model import (
    Action,
    Assignment,
    Begin,
    Event,
    Failed,
    Finished,
    Interrupted,
    Job,
    Joined,
    Kind,
    Lost,
    Outcome,
    Progressed,
    Refuse,
    SetAside,
    Stop,
    Worker,
)
from kernelgen.fleet.schedule import FAILURES, Schedule

KIND, OTHER = Kind("NVIDIA H200", (("driver", "580"),)), Kind("NVIDIA A100", (("driver", "580"),))


def jobs(count: int) -> tuple[Job, ...]:
    return tuple(Job(f"op{n}", ("optimize", f"op{n}")) for n in range(count))


def outcome(one: Assignment, code: int = 0) -> Outcome:
    return Outcome(one.job.operator, one.worker.name, one.worker.kind, code, "", "", 1.0)


@dataclass
class World:
    """Workers that play rounds, lose their processes and come and go, and the disk that collects their rounds."""

    schedule: Schedule
    rounds: int
    kinds: tuple[Kind, ...] = (KIND,)
    collected: dict[tuple[str, Kind], list[int]] = field(default_factory=dict)
    played: dict[int, int] = field(default_factory=dict)
    """By attempt: the next round of what it plays."""
    begun: dict[int, Assignment] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    failures: Counter[tuple[str, Kind]] = field(default_factory=Counter)
    """Without a round between them."""
    made: int = 0

    def tell(self, event: Event) -> None:
        before = dict(self.schedule.running)
        if isinstance(event, Failed) and event.attempt in before:
            self._count(before[event.attempt])
        if isinstance(event, Lost):
            for one in before.values():
                if one.worker.name == event.worker:
                    self._count(one)
        for action in self.schedule.handle(event):
            self.do(action)
        self.check()

    def _count(self, one: Assignment) -> None:
        self.failures[one.job.operator, one.worker.kind] += not self.schedule.interrupted

    def do(self, action: Action) -> None:
        if isinstance(action, Begin):
            one = action.assignment
            key = (one.job.operator, one.worker.kind)
            assert one.worker.name in self.alive
            assert one.attempt not in self.begun
            assert key not in self.schedule.done
            assert key not in self.schedule.aside
            self.begun[one.attempt] = one
            self.played[one.attempt] = len(self.collected.setdefault(key, []))
        elif isinstance(action, Refuse):
            self.alive.discard(action.worker)
        elif isinstance(action, SetAside):
            assert len(action.why) == FAILURES

    def check(self) -> None:
        schedule = self.schedule
        running = [(one.job.operator, one.worker.kind) for one in schedule.running.values()]
        busy = [one.worker.name for one in schedule.running.values()]
        assert len(set(running)) == len(running), "an operator on two workers"
        assert len(set(busy)) == len(busy), "a worker with two operators"
        total = len(schedule.jobs) * max(1, len(schedule.kinds))
        assert schedule.waiting + len(running) + len(schedule.done) + len(schedule.aside) == total
        for key, count in self.failures.items():
            assert (key in schedule.aside) == (count >= FAILURES), (key, count)
        for rounds in self.collected.values():
            assert rounds == list(range(len(rounds))), "a round lost or doubled"
        for key in schedule.done:
            assert len(self.collected[key]) == self.rounds

    def join(self, dice: random.Random) -> None:
        self.made += 1
        self.alive.add(f"w{self.made}")
        self.tell(Joined(Worker(f"w{self.made}", dice.choice(self.kinds))))

    def play(self, attempt: int) -> None:
        """An attempt plays its next round, or comes to its end; what reaches the disk is what its owner sent."""
        one = self.begun[attempt]
        key = (one.job.operator, one.worker.kind)
        if self.played[attempt] < self.rounds:
            if attempt in self.schedule.running:
                self.collected[key].append(self.played[attempt])
                self.failures.pop(key, None)
            self.played[attempt] += 1
            self.tell(Progressed(attempt))
        else:
            self.tell(Finished(attempt, outcome(one)))

    def happen(self, dice: random.Random) -> None:
        """Anything, also from workers that are gone and attempts that were given to others."""
        kind = dice.choices(("join", "lose", "fail", "play"), (2, 1, 2, 8))[0]
        if kind == "join" and len(self.alive) < 4:
            self.join(dice)
        elif kind == "lose" and self.alive:
            name = dice.choice(sorted(self.alive))
            self.alive.discard(name)
            self.tell(Lost(name, "its node left"))
        elif self.begun:
            recent = list(self.begun)[-8:]
            if kind == "fail":
                self.tell(Failed(dice.choice(recent), "killed"))
            elif kind == "play":
                self.play(dice.choice(recent))

    def drain(self, dice: random.Random) -> None:
        """From now on nothing fails."""
        for _ in range(10_000):
            if self.schedule.drained:
                return
            if self.schedule.stuck:
                self.join(dice)
            else:
                self.play(dice.choice(list(self.schedule.running)))
        raise AssertionError("the queue does not drain")


@pytest.mark.parametrize("seed", range(60))
def test_random_events_lose_and_double_nothing(seed: int) -> None:
    dice = random.Random(seed)
    each = seed % 3 == 0
    world = World(Schedule(jobs(dice.randint(1, 9)), each), dice.randint(0, 4), (KIND, OTHER) if each else (KIND,))
    for _ in range(dice.randint(0, 150)):
        world.happen(dice)
    world.drain(dice)
    assert len(world.schedule.done) + len(world.schedule.aside) == len(world.schedule.jobs) * len(world.schedule.kinds)


def begin(schedule: Schedule, *names: str, kind: Kind = KIND) -> list[Action]:
    return [action for name in names for action in schedule.handle(Joined(Worker(name, kind)))]


def test_a_failed_operator_is_tried_elsewhere_and_after_three_failures_set_aside() -> None:
    schedule = Schedule(jobs(1))
    begin(schedule, "a", "b")
    tried = []
    actions: tuple[Action, ...] = ()
    for _ in range(FAILURES):
        (one,) = schedule.running.values()
        tried.append(one.worker.name)
        actions = schedule.handle(Failed(one.attempt, "killed"))
    assert tried == ["a", "b", "a"]
    assert actions == (SetAside("op0", ("a: killed", "b: killed", "a: killed")),)
    assert schedule.drained


def test_a_worker_on_which_everything_fails_is_used_no_longer() -> None:
    schedule = Schedule(jobs(9))
    begin(schedule, "bad", "good")
    refused: list[Action] = []
    for _ in range(FAILURES):
        attempt = next(a for a, one in schedule.running.items() if one.worker.name == "bad")
        refused += [action for action in schedule.handle(Failed(attempt, "Xid 79")) if isinstance(action, Refuse)]
    assert refused == [Refuse("bad", "3 commands in a row failed on it, the last one: Xid 79")]
    assert {one.worker.name for one in schedule.running.values()} == {"good"}


def test_unlike_workers_are_refused_by_what_differs() -> None:
    schedule = Schedule(jobs(3))
    begin(schedule, "a")
    assert begin(schedule, "b", kind=OTHER) == [Refuse("b", "unlike the others: NVIDIA A100 instead of NVIDIA H200")]
    newer = replace(KIND, versions=(("driver", "590"),))
    assert begin(schedule, "c", kind=newer) == [Refuse("c", "unlike the others: driver 590 instead of 580")]


def test_each_kind_has_all_operators() -> None:
    schedule = Schedule(jobs(1), each=True)
    begin(schedule, "a")
    begin(schedule, "b", kind=OTHER)
    assert {one.worker.kind for one in schedule.running.values()} == {KIND, OTHER}
    for attempt, one in list(schedule.running.items()):
        schedule.handle(Finished(attempt, outcome(one)))
    assert schedule.drained
    assert set(schedule.done) == {("op0", KIND), ("op0", OTHER)}


def test_two_operators_of_one_folder_wait_for_each_other() -> None:
    shared = tuple(replace(job, folder="operators/shared") for job in jobs(2))
    schedule = Schedule((*shared, *jobs(3)[2:]))
    begin(schedule, "a", "b", "c")
    assert [one.job.operator for one in schedule.running.values()] == ["op0", "op2"]
    schedule.handle(Finished(1, outcome(schedule.running[1])))
    assert sorted(one.job.operator for one in schedule.running.values()) == ["op1", "op2"]


def test_after_an_interrupt_nothing_is_begun_and_nothing_is_a_failure() -> None:
    schedule = Schedule(jobs(4))
    begin(schedule, "a", "b")
    assert schedule.handle(Interrupted()) == (Stop(1), Stop(2))
    schedule.handle(Finished(1, outcome(schedule.running[1])))
    assert schedule.handle(Failed(2, "interrupted")) == ()
    assert schedule.drained
    assert (schedule.waiting, len(schedule.done)) == (3, 1)


def test_what_is_finished_is_not_begun_again() -> None:
    first = Outcome("op0", "a", KIND, 0, "", "", 1.0)
    schedule = Schedule(jobs(2), finished=[first])
    begin(schedule, "a", "b")
    assert [one.job.operator for one in schedule.running.values()] == ["op1"]


def test_what_another_kind_finished_is_begun_again() -> None:
    other = Outcome("op0", "a", OTHER, 0, "", "", 1.0)
    schedule = Schedule(jobs(2), finished=[other])
    begin(schedule, "a", "b")
    assert sorted(one.job.operator for one in schedule.running.values()) == ["op0", "op1"]
    assert not schedule.done


def test_without_a_worker_it_is_stuck_and_not_drained() -> None:
    schedule = Schedule(jobs(1))
    assert schedule.stuck
    begin(schedule, "a")
    assert not schedule.stuck
    schedule.handle(Lost("a", "gone"))
    assert schedule.stuck
    assert not schedule.drained
