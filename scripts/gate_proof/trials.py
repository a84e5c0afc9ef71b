"""One trial: both sides are measured as `tune ci` or `tune baseline` do it, and judged as the product judges."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from reports.diff.diff import Diff
from reports.diff.judge import judge
from reports.diff.rules import Rule, parse_rule
from reports.diff.side import Side, SideRun
from scripts.gate_proof.change import CHANGES, NOTHING, Change, Conditions
from scripts.gate_proof.machines import MACHINES, Machine, UnderChange
from scripts.gate_proof.real import REAL, real_machine
from tuner.ci.gate import PAIRS
from tuner.ci.turns import Arm, measure_in_turn, measure_runs

# Standard deviation of a machine's pace from one day to another.
DAY_SPREAD = 0.02
DAYS, RUNS_A_DAY = 6, 3
RULES = ("mean_tpot>+5%", "mean_ttft>+5%", "goodput<-5%")
FIXED_LIMIT = 0.05

IN_TURN, STORED, STORED_RULES, FIXED = "in turn", "stored", "stored, rules", "fixed 5 %, one run"
GOALS_ON = (IN_TURN,)
"""What has to be right. How much can be told of another day depends on how days differ, so that is only shown."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One piece of the proof.

    Attributes:
        kind: `in turn`, as `tune ci` measures; or `stored`: a baseline of several days against runs of another day.
        machine: the name of one of `MACHINES`, or `REAL`.
        change: the name of what is done to the candidate.
        number: of the trial, from 0: the seed of everything in it.
    """

    kind: str
    machine: str
    change: str
    number: int

    @property
    def key(self) -> str:
        """Of its place in the ledger."""
        return f"{self.kind}/{self.machine}/{self.change}/{self.number}"


def play(trial: Trial) -> dict[str, Any]:
    """Measure and judge; the judgements by the name of what judged."""
    machine, change = machine_named(trial.machine), CHANGES[trial.change]
    # Trials of one number are independent across changes as well: no two see the same noise.
    seed = random.Random(trial.key).getrandbits(40)
    if trial.kind == IN_TURN:
        return {IN_TURN: _found(judge(*in_turn(machine, change, seed)))}
    base, new = on_other_days(machine, change, seed)
    rules = [parse_rule(text) for text in RULES]
    return {
        STORED: _found(judge(base, new)),
        STORED_RULES: _found(judge(base, new, rules=rules)),
        FIXED: {"exit_code": int(beyond_fixed_limit(base, new, rules)), "verdicts": {}},
    }


def machine_named(name: str) -> Machine:
    """One of the noisy machines, or this one."""
    return real_machine() if name == REAL else MACHINES[name]


def in_turn(machine: Machine, change: Change, seed: int) -> tuple[Side, Side]:
    """Base and candidate as `tune ci` measures them by default."""
    conditions = Conditions()
    target = machine.make(seed, conditions)
    loads = [replace(machine.load, seed=1000 * (seed % 1_000_000) + k) for k in range(PAIRS)]
    base, candidate = (
        Arm(name, UnderChange(target, conditions, what), machine.settings)
        for name, what in (("baseline", NOTHING), ("candidate", change))
    )
    return measure_in_turn(base, candidate, loads, machine.slo)


def on_other_days(machine: Machine, change: Change, seed: int) -> tuple[Side, Side]:
    """A baseline that was measured on several days, and runs of the candidate on one more, of the same traffic."""
    days = random.Random(seed)
    load = replace(machine.load, seed=seed % 1_000_000)

    def day(name: str, what: Change, number: int) -> list[SideRun]:
        conditions = Conditions(day=days.lognormvariate(0.0, DAY_SPREAD))
        target = machine.make(seed + number, conditions)
        arm = Arm(name, UnderChange(target, conditions, what), machine.settings)
        runs = measure_runs([(arm, load)] * RUNS_A_DAY, machine.slo)
        # Simulated days pass in a second, and would share its time.
        return [replace(run, session=f"day {number}") for _, run in runs]

    base = [run for number in range(DAYS) for run in day("baseline", NOTHING, number)]
    return _side("baseline", base), _side("candidate", day("candidate", change, DAYS))


def beyond_fixed_limit(base: Side, new: Side, rules: Sequence[Rule]) -> bool:
    """What a tool says that holds one run against one run and lets 5 % pass."""
    from reports.diff.metrics import metric_named

    for rule in rules:
        read = metric_named(rule.metric).read
        before, now = read(base.runs[-1].record), read(new.runs[0].record)
        if before is not None and now is not None:
            limit = before * (1.0 + rule.limit)
            if now > limit if rule.above else now < limit:
                return True
    return False


def _side(name: str, runs: Sequence[SideRun]) -> Side:
    return Side(name, None, runs[0].record.meta, tuple(runs))


def _found(diff: Diff) -> dict[str, Any]:
    verdicts = {line.name: str(line.verdict) for line in diff.gated if line.verdict is not None}
    if diff.slo is not None and diff.slo.gated:
        verdicts["SLO"] = str(diff.slo.verdict)
    return {"exit_code": diff.exit_code, "verdicts": verdicts}
