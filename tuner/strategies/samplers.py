"""Strategies that are a sampler of Optuna and nothing else."""

from typing import TYPE_CHECKING

from tuner.strategies.sampled import SampledStrategy

if TYPE_CHECKING:
    import optuna


# A study has tens of trials: a usual population of 50 would never see a second generation.
POPULATION = 10


class Tpe(SampledStrategy):
    """Densities of good and of other settings (Bergstra et al., NIPS 2011)."""

    def _make_sampler(self, seed: int) -> "optuna.samplers.BaseSampler":
        import optuna

        # Grouping is what lets the sampler see settings together although the chunk size is conditional.
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=self.first_random_trials, multivariate=True, group=True
        )


class Gp(SampledStrategy):
    """A Gaussian process for each objective and for how far the SLO is missed; asks for the expected improvement.

    A proposal takes a second or two of a core.
    """

    needs_every_parameter = True

    def _make_sampler(self, seed: int) -> "optuna.samplers.BaseSampler":
        import optuna

        return optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=self.first_random_trials, warn_independent_sampling=False
        )


class Nsga2(SampledStrategy):
    """Generations of settings that are crossed and mutated, spread along the front (Deb et al., IEEE TEC 2002)."""

    needs_every_parameter = True
    has_generations = True

    def _make_sampler(self, seed: int) -> "optuna.samplers.BaseSampler":
        import optuna

        return optuna.samplers.NSGAIISampler(seed=seed, population_size=POPULATION)


class Qmc(SampledStrategy):
    """A scrambled Sobol sequence: fills the space evenly, whatever was measured."""

    needs_every_parameter = True
    warm_starts = False
    avoids_failures = False

    def _make_sampler(self, seed: int) -> "optuna.samplers.BaseSampler":
        import optuna

        # One seed for all processes: Optuna keeps the place in the sequence with it.
        return optuna.samplers.QMCSampler(
            qmc_type="sobol", scramble=True, seed=self._search.seed, warn_independent_sampling=False
        )


class Random(SampledStrategy):
    """Every draw on its own: what each other strategy has to beat."""

    avoids_failures = False

    def _make_sampler(self, seed: int) -> "optuna.samplers.BaseSampler":
        import optuna

        return optuna.samplers.RandomSampler(seed=seed)
