"""Which parameter the goodput of a study hangs on."""

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

MIN_TRIALS_FOR_IMPORTANCE = 10


def importance(study: "optuna.Study") -> dict[str, float]:
    """Share of each parameter in the variation of goodput; empty with too few trials to tell.

    PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023) as Optuna has it.
    """
    import optuna

    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(complete) < MIN_TRIALS_FOR_IMPORTANCE or len({t.value for t in complete}) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    try:
        with warnings.catch_warnings():
            # With few trials the shares are rough; the report says so with them.
            warnings.simplefilter("ignore", UserWarning)
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
    except (ValueError, RuntimeError):
        return {}
