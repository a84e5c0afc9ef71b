"""What a reader must know before believing a diff."""

from collections.abc import Sequence

from reports.diff.comparable import Differences
from reports.diff.diff import Line
from reports.diff.side import Side
from reports.headline import notices

MEASURE_MORE = "`tune baseline repeat` measures a baseline again, `tune ci` both sides in turn"


def notices_of(
    base: Side, new: Side, found: Differences, lines: Sequence[Line], left_out: Sequence[Side]
) -> tuple[str, ...]:
    """One sentence each.

    Args:
        left_out: sides whose repeats were not used, since they come from another machine or load.
    """
    told = list(dict.fromkeys((*notices(base.meta), *notices(new.meta))))
    if found.refused:
        told.append(f"Compared although these differ: {'; '.join(map(str, found.refused))}.")
    if base.meta.get("slo") != new.meta.get("slo"):
        told.append("Each side counts as good what its own SLO asks for: neither goodput nor the SLO is judged.")
    if base.path is not None and new.path is not None and base.path.resolve() == new.path.resolve():
        told.append("Both sides are the same folder: there is nothing to compare.")
    gated = [line for line in lines if line.gated]
    if any(line.design in ("unpaired", "requests") for line in gated):
        told.append("The sides share no seed: their traffic differed, and its luck is in the intervals.")
    if any(line.has_noise is False for line in gated):
        told.append(
            "One run of each side shows how single requests vary, but not how much the machine varies from run to run: "
            f"no difference can be told from that. {MEASURE_MORE}."
        )
    elif any(line.has_sessions is False for line in gated):
        told.append(
            "The sides were measured at different times, and not often enough to know what that does to the machine: "
            f"it is not in the intervals. Without rules, only what exceeds the margin is worse. {MEASURE_MORE}."
        )
    if left_out:
        names = ", ".join(side.name for side in left_out)
        told.append(f"The repeats of {names} are of another device or load and were not used.")
    return tuple(told)
