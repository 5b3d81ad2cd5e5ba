"""The picture of a timeline, as Matplotlib is told to draw it."""

import sys

import pytest
from matplotlib.figure import Figure

import colonnade as cn
from colonnade.describe.timeline import Event, Timeline
from colonnade.show.timeline import draw

TASKS = (
    Event("CPU:10", 0.0, 0.001, "forward", 1, 0),
    Event("CPU:2", 0.001, 0.003, "backward", 0, 0),
    Event("CPU:2", 0.003, 0.00301, "forward", 0, 1),
)


def test_a_line_per_device_in_order_and_a_box_per_task(tmp_path, monkeypatch):
    saved = []
    save = Figure.savefig

    def noted(self, path, **options):
        saved.append(self)
        return save(self, path, **options)

    monkeypatch.setattr(Figure, "savefig", noted)
    path = draw(Timeline.of(TASKS), tmp_path / "timeline.svg")
    assert path.read_text().startswith("<?xml")
    (axes,) = saved[0].axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["CPU:2", "CPU:10"]
    boxes = [(box.get_x(), box.get_width(), box.get_y() + 0.4) for box in axes.patches]
    assert boxes == [pytest.approx(box) for box in ((0.0, 1.0, 1), (1.0, 2.0, 0), (3.0, 0.01, 0))]  # ms
    assert len(axes.texts) == 2  # the third is too narrow for one


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(cn.ColonnadeError, match=r"pip install 'colonnade\[bench\]'"):
        draw(Timeline.of(TASKS), tmp_path / "timeline.png")
