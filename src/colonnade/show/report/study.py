"""The page of a study: Optuna's own figures, the trials, and the end of the log of those that failed.

`study_page(folder)` is for `colonnade report STUDY` as well: a folder is a study's if `is_study` says so.
"""

import warnings
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.describe.whole_file import write_whole
from colonnade.show.page import render

if TYPE_CHECKING:
    import optuna

PAGE = "report.html"
TRIALS = 1000  # rows of the table of trials
LOG_LINES = 20  # of the log of a trial that failed


def is_study(folder: Path) -> bool:
    """Whether a folder is that of a study, as `colonnade sweep` makes it."""
    try:
        return (folder / "study.json").is_file()
    except OSError:  # one that may not be looked into; whoever reads it says so
        return False


def write_page(folder: Path) -> Path:
    """Write the page of a study into its folder; a reader sees the old one or the new one, whole."""
    page = folder / PAGE
    write_whole(page, study_page(folder))
    return page


def study_page(folder: Path, refresh: int = 0) -> str:
    """One HTML page on the study in a folder, which needs no other file and no network.

    It looks at itself again after so many seconds, unless they are 0.
    """
    from plotly.offline import get_plotlyjs

    from colonnade.sweeps.study import open_study

    study = open_study(folder)
    trials = study.get_trials(deepcopy=False)
    states = [trial.state.name.lower() for trial in trials]
    best = study.best_trial if "complete" in states else None
    return render(
        "study.html",
        refresh=refresh,
        name=study.study_name,
        direction=study.direction.name.lower(),
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        counts={state: states.count(state) for state in dict.fromkeys(states)},
        best=best,
        plotly=get_plotlyjs(),
        figures=figures(study),
        rows=[_row(trial) for trial in trials[:TRIALS]],
        hidden=max(0, len(trials) - TRIALS),
        failures=failures(study, folder),
    )


def figures(study: "optuna.Study") -> list[tuple[str, str]]:
    """Optuna's figures, as pieces of HTML; those that the study has something to show for."""
    from optuna import visualization as draw
    from plotly.io import to_html

    trials = study.get_trials(deepcopy=False)
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    drawn = {}
    if complete:
        drawn["History"] = draw.plot_optimization_history(study)
        if any(trial.params for trial in complete):
            drawn["Parallel coordinates"] = draw.plot_parallel_coordinate(study)
            drawn["Slices"] = draw.plot_slice(study)
    if importance(study):
        drawn["Importance of the parameters"] = draw.plot_param_importances(study)
    if any(trial.intermediate_values for trial in trials):
        drawn["Values on the way"] = draw.plot_intermediate_values(study)
    # Nothing of a page leaves it: without the button that sends a chart to Plotly's cloud.
    config = {"displaylogo": False, "showSendToCloud": False, "plotlyServerURL": ""}
    options = {"include_plotlyjs": False, "full_html": False, "config": config}
    return [(title, to_html(figure, **options)) for title, figure in drawn.items()]


def importance(study: "optuna.Study") -> dict[str, float]:
    """How much each parameter mattered, as Optuna estimates it; empty where nothing can be said."""
    from optuna.importance import get_param_importances

    trials = [t for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    shared = set.intersection(*(set(trial.params) for trial in trials)) if trials else set()
    varied = [name for name in shared if len({repr(trial.params[name]) for trial in trials}) > 1]
    if len(trials) < 4 or not varied or len({trial.values[0] for trial in trials}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(get_param_importances(study))


def failures(study: "optuna.Study", folder: Path) -> list[tuple[int, str, list[str]]]:
    """Of each trial that failed: its number, the reason, and the end of its log."""
    from colonnade.sweeps.trial_folder import TrialFolder

    failed = [t for t in study.get_trials(deepcopy=False) if t.state.name == "FAIL"]
    return [
        (
            trial.number,
            str(trial.user_attrs.get("reason", "")),
            TrialFolder(folder / "trials" / f"{trial.number:04d}").tail(LOG_LINES),
        )
        for trial in failed
    ]


def _row(trial: "optuna.trial.FrozenTrial") -> dict[str, Any]:
    ours = trial.user_attrs.get("colonnade", {})
    return {
        "number": trial.number,
        "state": {"fail": "failed"}.get(trial.state.name.lower(), trial.state.name.lower()),
        "value": "" if not trial.values else f"{trial.values[0]:.6g}",
        "params": trial.params,
        "seconds": "" if trial.duration is None else f"{trial.duration.total_seconds():.1f}",
        "cards": ours.get("cards", ""),
        "host": ours.get("host", ""),
        "reason": trial.user_attrs.get("reason", ""),
    }
