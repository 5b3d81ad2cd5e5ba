"""The trial that an objective is given: as Optuna's, which is in the sweep's process.

Parameters are chosen and pruning is decided there, where the storage is; so a trial's process can be killed
at any moment, and neither imports Optuna nor opens the storage unless the objective does.
"""

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from colonnade.sweeps.slots.channel import Channel


class RemoteTrial:
    """What an objective uses of an `optuna.Trial`."""

    def __init__(self, channel: Channel, says: dict[str, Any]) -> None:
        self._channel = channel
        self._storage = says["storage"]
        self._study_name = says["study"]
        self.number: int = says["number"]
        self.folder = Path(says["folder"])
        self.datetime_start = datetime.fromisoformat(says["start"])
        optuna = sys.modules.get("optuna")
        if optuna is not None:  # some code asks whether it got a trial of Optuna's
            optuna.trial.BaseTrial.register(type(self))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        value: float = self._channel.ask("suggest_float", name, low, high, step=step, log=log)
        return value

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        value: int = self._channel.ask("suggest_int", name, low, high, step=step, log=log)
        return value

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """One of the choices: the very object that was passed."""
        choices = tuple(choices)
        plain = all(choice is None or isinstance(choice, bool | int | float | str) for choice in choices)
        if not plain:
            raise TypeError("choices must be None, bool, int, float or str, so that they can be stored")
        return choices[self._channel.ask("suggest_categorical", name, choices)]

    def report(self, value: float, step: int) -> None:
        self._channel.ask("report", float(value), int(step))

    def should_prune(self) -> bool:
        decided: bool = self._channel.ask("should_prune")
        return decided

    def set_user_attr(self, key: str, value: Any) -> None:
        self._channel.ask("set_user_attr", key, value)

    def set_constraint(self, key: str, value: float) -> None:
        self._channel.ask("set_constraint", key, float(value))

    @property
    def constraints(self) -> dict[str, float]:
        values: dict[str, float] = self._channel.ask("constraints")
        return values

    @property
    def params(self) -> dict[str, Any]:
        values: dict[str, Any] = self._channel.ask("params")
        return values

    @property
    def user_attrs(self) -> dict[str, Any]:
        values: dict[str, Any] = self._channel.ask("user_attrs")
        return values

    @property
    def distributions(self) -> dict[str, Any]:
        from optuna.distributions import json_to_distribution

        said = self._channel.ask("distributions")
        return {name: json_to_distribution(text) for name, text in said.items()}

    @property
    def study(self) -> Any:
        """The study, read from its storage."""
        import optuna

        from colonnade.sweeps.storage import open_storage

        folder = self.folder.parent.parent
        return optuna.load_study(study_name=self._study_name, storage=open_storage(self._storage, folder))
