"""The program that a shell loop starts for every trial, with the URL of the study: it asks, and tells."""

import sys

import optuna


def open_study(url: str) -> optuna.Study:
    storage: optuna.storages.BaseStorage | str = url
    if url.endswith(".log"):
        backend = optuna.storages.journal.JournalFileBackend(url)
        storage = optuna.storages.JournalStorage(backend)
    return optuna.create_study(study_name="benchmark", storage=storage, load_if_exists=True)


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = open_study(sys.argv[1])
    trial = study.ask()
    study.tell(trial, trial.suggest_float("x", -1, 1) ** 2)
