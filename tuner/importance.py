"""Which parameter the goodput of a study hangs on."""

import warnings
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

MIN_TRIALS_FOR_IMPORTANCE = 10


def importance(study: "optuna.Study") -> dict[str, float]:
    """Share of each parameter in the variation of goodput; empty with too few trials to tell.

    A parameter that acts only beside certain others, and so was drawn in too few of the trials, is left out.

    PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023) as Optuna has it.
    """
    import optuna

    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(complete) < MIN_TRIALS_FOR_IMPORTANCE or len({t.value for t in complete}) < 2:
        return {}
    drawn = Counter(name for trial in complete for name in trial.params)
    params = [name for name, count in drawn.items() if count >= MIN_TRIALS_FOR_IMPORTANCE]
    if not params:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    try:
        with warnings.catch_warnings():
            # With few trials the shares are rough; the report says so with them.
            warnings.simplefilter("ignore", UserWarning)
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator, params=params))
    except (ValueError, RuntimeError):
        return {}
