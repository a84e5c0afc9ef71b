"""Which parameter the outcome of a study hangs on."""

import warnings
from collections import Counter
from typing import TYPE_CHECKING

from tuner.strategies.sampled import UNMEASURED

if TYPE_CHECKING:
    import optuna

MIN_TRIALS_FOR_IMPORTANCE = 10


def importance(study: "optuna.Study") -> dict[str, float]:
    """Share of each parameter in the variation of the objective; empty with too few trials to tell.

    With several objectives it is in how near to their front a setting comes.

    A parameter that acts only beside certain others, and so was drawn in too few of the trials, is left out.

    PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023) as Optuna has it.
    """
    import optuna

    told = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    complete = [trial for trial in told if UNMEASURED not in trial.user_attrs]
    if len(complete) < MIN_TRIALS_FOR_IMPORTANCE or len({tuple(t.values) for t in complete}) < 2:
        return {}
    drawn = Counter(name for trial in complete for name in trial.params)
    params = [name for name, count in drawn.items() if count >= MIN_TRIALS_FOR_IMPORTANCE]
    if not params:
        return {}
    measured = optuna.create_study(directions=study.directions)
    measured.add_trials(complete)
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    try:
        with warnings.catch_warnings():
            # With few trials the shares are rough; the report says so with them.
            warnings.simplefilter("ignore", UserWarning)
            return dict(optuna.importance.get_param_importances(measured, evaluator=evaluator, params=params))
    except (ValueError, RuntimeError):
        return {}
