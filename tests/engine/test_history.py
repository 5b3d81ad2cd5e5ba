import numpy as np
import pytest
from lines import X, Y, linear

import colonnade as cn
from colonnade.run.engine.history import History, Record


def test_a_history_has_a_record_per_log_line_and_the_loss_of_every_step():
    _, trainer = linear()
    history = trainer.fit((X, Y), batch_size=16, steps=7, log_every=3, progress=False)
    assert [record.step for record in history.records] == [3, 6, 7]
    assert len(history.losses) == 7
    assert history.records[-1].examples == history.examples == trainer.examples == 16 * 3 + 2 + 16 * 3
    assert np.isfinite(history.losses).all()
    assert (history.interrupted, history.resumed) == (False, None)
    assert history.examples_per_second == pytest.approx(history.examples / history.seconds)


def test_a_history_of_nothing_has_no_speed():
    assert History().examples_per_second == 0.0


def test_histories_and_records_share_nothing():
    History().records.append(Record(1.0, {}, 1, 4))
    Record(1.0, {}, 1, 4).staleness[0] = 1
    assert History().records == []
    assert Record(1.0, {}, 1, 4).staleness == {}


def test_a_page_of_a_fit(tmp_path):
    _, trainer = linear(devices=2)
    history = trainer.fit(
        (X, Y), batch_size=50, steps=2, log_every=1, logdir=tmp_path / "log", progress=False
    )
    page = history.report()
    assert page == tmp_path / "log" / "report.html"
    assert "log · Colonnade</title>" in page.read_text()
    assert history.report(tmp_path / "other.html") == tmp_path / "other.html"
    without = trainer.fit((X, Y), batch_size=50, steps=1, progress=False)
    with pytest.raises(cn.InvalidArgument, match="the fit wrote no log"):
        without.report()


def test_in_a_notebook():
    history = History([Record(0.5, {"<m>": 0.25}, 1200, 64, 3)], [1.0, 0.5], seconds=2.0, examples=64)
    html = history._repr_html_()
    assert "&lt;m&gt;" in html
    assert "2 steps, 32 examples/s" in html
    assert "<polyline" in html
    assert "nothing was trained" in History()._repr_html_()
    assert "1,200" in history.records[0]._repr_html_()
