"""`cn.pruning`: a callback for `Trainer.fit` that reports a metric and ends trials without promise."""

from typing import Any

from colonnade.errors import InvalidArgument, Problem


class Pruning:
    """Called with the record of every log line; raises `optuna.TrialPruned` where the pruner says so."""

    def __init__(self, trial: Any, metric: str) -> None:
        self._trial, self._metric = trial, metric

    def __call__(self, record: Any) -> None:
        import optuna

        known = {"loss": record.loss, **record.metrics}
        if self._metric not in known:
            fix = f"The loss function reports: {', '.join(known)}"
            problem = Problem("metric", self._metric, "is no metric of this training", fix)
            raise InvalidArgument("pruning()", [problem])
        self._trial.report(known[self._metric], record.step)
        if self._trial.should_prune():
            raise optuna.TrialPruned(f"{self._metric} at step {record.step}: {known[self._metric]:.4g}")


def pruning(trial: Any, metric: str = "loss") -> Pruning:
    """A callback that ends a trial which does worse than others did at the same step.

    Args:
        trial: the trial that the objective was given.
        metric: what to report: `loss`, or a metric of the loss function; the study's direction is its own.

    Example:
        >>> import colonnade as cn, optuna
        >>> study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=1.0))
        >>> trial = study.ask()
        >>> callback = cn.pruning(trial, "loss")
        >>> callback(cn.Record(loss=0.5, metrics={}, step=10, examples=320))
        >>> callback(cn.Record(loss=2.0, metrics={}, step=20, examples=640))
        Traceback (most recent call last):
        optuna.exceptions.TrialPruned: loss at step 20: 2
    """
    return Pruning(trial, metric)
