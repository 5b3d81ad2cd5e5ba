"""Tests mirror the rooms: `tests/<room>/test_<module>.py` is about `src/colonnade/run/<room>/<module>.py`.

Rooms of `run` and packages beside it (`show`, `reason/planning`) are folders of the tests alike.
"""

from fresh import ROOT

SOURCE, TESTS = ROOT / "src" / "colonnade", ROOT / "tests"
# Modules without a test file of their name, each with the reason.
ELSEWHERE = {
    "cli.experiments": "show/experiment/test_experiment.py runs the command and looks at all that it makes",
    "show.experiment.gallery": "its figures are those of an experiment, which test_experiment.py runs once",
    "hardware.doctors.finding": "a record without code of its own; test_doctor.py makes one of every kind",
}


def mirrored(module):
    """Where the tests of a module are, from the root of all tests."""
    *folders, name = module.split(".")
    return "/".join([*(f for f in folders if f != "run"), f"test_{name}.py"])


MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if path.name != "__init__.py"
]


def test_a_module_has_a_test_file_of_its_name_or_says_why_not():
    without = {module for module in MODULES if not (TESTS / mirrored(module)).exists()}
    assert without == set(ELSEWHERE)


def test_a_test_file_in_a_room_is_of_a_module():
    """Or of a part of what one does: `test_saver_data.py` beside `test_saver.py`."""
    names = {mirrored(module).removesuffix(".py") for module in MODULES}
    rooms = {name.rpartition("/")[0] for name in names if "/" in name}
    files = {f"{room}/{path.stem}" for room in rooms for path in (TESTS / room).glob("test_*.py")}
    strays = {f for f in files if not any(f == name or f.startswith(f"{name}_") for name in names)}
    assert strays == set()


def test_a_room_is_small_enough_to_look_around_in():
    """Rooms of `run` have 3 files or more and at most 11 modules; no other folder has more than 20 files."""
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    sizes = {str(f.relative_to(SOURCE)): len(list(f.glob("*.py"))) for f in folders}
    rooms = {name: size for name, size in sizes.items() if name.startswith("run/")}
    assert {name: size for name, size in rooms.items() if not 3 <= size <= 12} == {}
    assert {name: size for name, size in sizes.items() if size > 20} == {}
