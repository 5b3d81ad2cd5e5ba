import inspect
import json
import sys
from pathlib import Path

from fresh import ROOT, run

import colonnade as cn


def test_public_names():
    assert cn.__all__ == sorted(cn.__all__)
    errors = {
        name
        for name in cn.__all__
        if inspect.isclass(one := getattr(cn, name)) and issubclass(one, Exception)
    }
    assert len({*cn.__all__} - errors) <= 40
    for name in cn.__all__:
        assert getattr(cn, name) is not None
    assert set(cn.__all__) <= set(dir(cn))


def test_unknown_name():
    assert not hasattr(cn, "make_paralel")


NO_TENSORFLOW = """
import json, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
before = set(sys.modules)
def imported():
    new = set(sys.modules) - before
    return sorted(name for name in new if name.partition(".")[0] not in sys.stdlib_module_names)
import colonnade as cn
print(json.dumps(imported()))
cn.Topology.uniform(2)  # needs none
print(json.dumps(imported()))
for name in ("setup", "make_parallel", "placement"):
    try:
        getattr(cn, name)
    except ImportError as error:
        says = all(f"pip install 'colonnade[{extra}]'" in str(error) for extra in ("cpu", "gpu"))
        print(name, isinstance(error, cn.MissingTensorFlow), says)
"""


def test_import_takes_four_small_files_and_no_tensorflow():
    """So it is quick; what a name needs is imported with its first use."""
    done = run([sys.executable, "-c", NO_TENSORFLOW])
    assert done.returncode == 0, done.stderr
    at_first, with_topology, *rest = done.stdout.splitlines()
    small = {"colonnade", "colonnade.errors", "colonnade.hardware", "colonnade.hardware.onednn"}
    assert set(json.loads(at_first)) == small
    modules = ("fields", "link", "machines", "matrix", "speeds", "topology")
    used = {f"colonnade.describe.{name}" for name in modules}
    assert set(json.loads(with_topology)) == {*small, "colonnade.describe", *used}
    assert rest == [f"{name} True True" for name in ("setup", "make_parallel", "placement")]


def test_import_does_not_load_tensorflow():
    """Nor where it is installed."""
    done = run([sys.executable, "-c", "import colonnade, sys; print('tensorflow' in sys.modules)"])
    assert done.stdout.strip() == "False"


def test_what_is_special_about_cards_stays_in_one_place():
    """Only `hardware/` and the launcher, which sets the environment, know of GPUs."""
    source = ROOT / "src" / "colonnade"
    allowed = {source / "fleet" / "launch.py", *(source / "hardware").rglob("*.py")}
    guilty = {
        (str(path.relative_to(source)), word)
        for path in set(source.rglob("*.py")) - allowed
        for word in ("GPU", "nccl", "CUDA_")
        if word in path.read_text()
    }
    assert guilty == set()


def test_no_private_names_of_tensorflow_or_keras():
    private = ("tensorflow.python", "keras.src", "tensorflow.core", "tensorflow.compiler")
    files = [
        p for folder in ("src", "tests", "examples", "benchmarks") for p in (ROOT / folder).rglob("*.py")
    ]
    guilty = {str(p) for p in files if p != Path(__file__) for word in private if word in p.read_text()}
    assert guilty == set()
