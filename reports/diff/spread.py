"""How far a difference between two sides can be off: the spread of their runs, from whatever repeats there are.

A number of a run, on a scale on which differences add up, is the sum of what its side does, of its traffic (the seed),
of the day (the session of measuring) and of the machine's noise. Runs of one seed see the same traffic, so between them
it cancels; runs of one session share the day. Evidence is pooled only where it does not contradict: what the compared
runs say of the spread comes first, and other evidence joins it unless a preliminary F test at level 0.25 finds that
they vary by more (Bozivich, Bancroft and Hartley, Annals of Mathematical Statistics 27(4), 1956).

Nothing is imported that is slow to import before an interval is asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from reports.diff.estimate import TINY, Estimate, Reading

# The level that keeps a test after such a preliminary one close to its own level.
_PRELIMINARY = 0.25
# With fewer degrees of freedom between sessions that test sees so little that what it does not see may be there.
ENOUGH_SESSIONS = 3
# Likewise between pairs: with fewer, a quiet night on record would make a loud day look certain.
ENOUGH_PAIRS = 3


Readings = Sequence[Reading]
Cells = Mapping[object, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Squares:
    """A sum of squares that has the machine's noise as its mean square, and its degrees of freedom."""

    total: float = 0.0
    freedom: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.freedom

    def __add__(self, other: "Squares") -> "Squares":
        return Squares(self.total + other.total, self.freedom + other.freedom)

    def exceeds(self, other: "Squares") -> bool:
        """Whether this one is visibly larger, by the preliminary F test."""
        from scipy.stats import f

        if not self.freedom or not other.freedom or self.total <= TINY**2:
            return False
        if other.total <= TINY**2:
            return True
        return float(f.sf(self.mean / other.mean, self.freedom, other.freedom)) < _PRELIMINARY

    def pooled_with(self, other: "Squares") -> "Squares":
        """Both together; this one alone where it exceeds the other."""
        return self if self.exceeds(other) else self + other

    def judged_beside(self, repeats: "Squares", stored: "Squares") -> "Squares":
        """These of pairs with the repeats of the same sessions, and with those of other times once pairs can object."""
        together = self.pooled_with(repeats)
        return together.pooled_with(stored) if self.freedom >= ENOUGH_PAIRS else together


def estimate(base: Readings, new: Readings, noise: Sequence[Readings] = ()) -> Estimate | None:
    """The difference of two sides, by the best comparison that their runs allow.

    Args:
        base, new: at least one reading each.
        noise: of further sides that were measured on the same machine; their repeats tell of its noise where there are
            pairs enough to say whether today is like that.

    Returns:
        None where the runs say nothing of the spread: one comparison, and no repeat anywhere.
    """
    if together := _shared(base, new, by_session=True):
        shared = {r.session for r in base} & {r.session for r in new}
        today = repeats_of([r for r in side if r.session in shared] for side in (base, new))
        stored = repeats_of([*([r for r in side if r.session not in shared] for side in (base, new)), *noise])
        return _paired(*together, _between_pairs(*together).judged_beside(today, stored))
    apart = _shared(base, new, by_session=False)
    if apart is None:
        return _unpaired(base, new)
    within = _between_pairs(*apart).judged_beside(repeats_of([base, new]), repeats_of(noise))
    sessions = _between_sessions(base) + _between_sessions(new)
    if not sessions.freedom:
        return _paired(*apart, within, has_sessions=False)
    if not within.freedom or sessions.exceeds(within):
        return _by_session(base, new, within) or _paired(*apart, within, has_sessions=False)
    return _paired(*apart, within + sessions, has_sessions=sessions.freedom >= ENOUGH_SESSIONS)


def repeats_of(sides: Iterable[Readings]) -> Squares:
    """What runs of one seed in one session, repeated on one side, say of the machine's noise."""
    total = Squares()
    for readings in sides:
        for values in _cells(readings, by_session=True).values():
            total += _around_mean(values)
    return total


def _cells(readings: Readings, *, by_session: bool) -> dict[object, list[float]]:
    cells: dict[object, list[float]] = {}
    for reading in readings:
        key = (reading.seed, reading.session) if by_session else reading.seed
        cells.setdefault(key, []).append(reading.value)
    return cells


def _shared(base: Readings, new: Readings, *, by_session: bool) -> tuple[Cells, Cells] | None:
    ours, theirs = _cells(base, by_session=by_session), _cells(new, by_session=by_session)
    keys = [key for key in ours if key in theirs]
    return ({key: ours[key] for key in keys}, {key: theirs[key] for key in keys}) if keys else None


def _around_mean(values: Sequence[float]) -> Squares:
    mean = fmean(values)
    return Squares(sum((value - mean) ** 2 for value in values), len(values) - 1)


def _precisions(base: Cells, new: Cells) -> list[float]:
    """Of each pair: one over its variance in units of the noise's."""
    return [1 / (1 / len(base[key]) + 1 / len(new[key])) for key in base]


def _between_pairs(base: Cells, new: Cells) -> Squares:
    """What pairs say of the noise by differing from each other."""
    weights = _precisions(base, new)
    differences = [fmean(new[key]) - fmean(base[key]) for key in base]
    mean = _weighted(differences, weights)
    total = sum(w * (d - mean) ** 2 for w, d in zip(weights, differences, strict=True))
    return Squares(total, len(differences) - 1)


def _paired(base: Cells, new: Cells, spread: Squares, *, has_sessions: bool = True) -> Estimate | None:
    if not spread.freedom:
        return None
    weights = _precisions(base, new)
    return Estimate(
        base=_weighted([fmean(base[key]) for key in base], weights),
        new=_weighted([fmean(new[key]) for key in base], weights),
        variance=spread.mean / sum(weights),
        freedom=spread.freedom,
        design="paired",
        units=len(weights),
        has_sessions=has_sessions,
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


@dataclass(frozen=True, slots=True)
class _Session:
    """The mean of a session over some seeds, and its variance in units of the noise's."""

    mean: float
    variance: float


def _sessions(readings: Readings, seeds: set[int] | None = None) -> list[_Session]:
    """The sessions of a side, over those of the seeds that each of them has; empty when there are none."""
    by_session: dict[str, list[Reading]] = {}
    for reading in readings:
        by_session.setdefault(reading.session, []).append(reading)
    common = set.intersection(*({r.seed for r in own} for own in by_session.values()))
    common = common if seeds is None else common & seeds
    if not common:
        return []
    sessions = []
    for own in by_session.values():
        cells = [values for seed, values in _cells(own, by_session=False).items() if seed in common]
        variance = sum(1 / len(values) for values in cells) / len(cells) ** 2
        sessions.append(_Session(fmean(fmean(values) for values in cells), variance))
    return sessions


def _between_sessions(readings: Readings) -> Squares:
    """What a side's sessions say of the noise by differing from each other: too much, where the days differ."""
    sessions = _sessions(readings)
    if len(sessions) < 2:
        return Squares()
    weights = [1 / session.variance for session in sessions]
    mean = _weighted([session.mean for session in sessions], weights)
    total = sum(w * (session.mean - mean) ** 2 for w, session in zip(weights, sessions, strict=True))
    return Squares(total, len(sessions) - 1)


def _by_session(base: Readings, new: Readings, within: Squares) -> Estimate | None:
    """Sides compared by their sessions' means over the seeds that all sessions have."""
    seeds = {r.seed for r in base} & {r.seed for r in new}
    ours, theirs = _sessions(base, seeds), _sessions(new, seeds)
    if not ours or not theirs:
        return None
    spread = _around_mean([s.mean for s in ours]) + _around_mean([s.mean for s in theirs])
    if not spread.freedom:
        return None
    several = [session.variance for side in (ours, theirs) if len(side) > 1 for session in side]
    variance = 0.0
    for side in (ours, theirs):
        # A session of fewer runs than those that show the spread varies by more than they do.
        more = max(0.0, fmean(s.variance for s in side) - fmean(several))
        variance += (spread.mean + more * (within.mean if within.freedom else 0.0)) / len(side)
    return Estimate(
        base=fmean(s.mean for s in ours),
        new=fmean(s.mean for s in theirs),
        variance=variance,
        freedom=spread.freedom,
        design="sessions",
        units=min(len(ours), len(theirs)),
    )


def _unpaired(base: Readings, new: Readings) -> Estimate | None:
    """Sides without a common seed, by their seeds' means: these differ by traffic and by noise."""
    ours, theirs = ([fmean(v) for v in _cells(side, by_session=False).values()] for side in (base, new))
    spread = _around_mean(ours) + _around_mean(theirs)
    if not spread.freedom:
        return None
    together = {r.session for r in base} == {r.session for r in new}
    return Estimate(
        base=fmean(ours),
        new=fmean(theirs),
        variance=spread.mean * (1 / len(ours) + 1 / len(theirs)),
        freedom=spread.freedom,
        design="unpaired",
        units=min(len(ours), len(theirs)),
        has_sessions=together,
    )
