"""Published figures of links and cards."""

import csv
from importlib.resources import files

import pytest

from colonnade.describe import speeds


@pytest.mark.parametrize(
    ("card", "kind", "gigabytes"),
    [
        ("Tesla P100-SXM2-16GB", "NV1", 18),
        ("Tesla V100-SXM2-32GB", "NV2", 40),
        ("NVIDIA A100-SXM4-40GB", "NV12", 240),
        ("NVIDIA H100 80GB HBM3", "NV18", 370.8),
        ("NVIDIA H100 80GB HBM3", "PIX", 48),
        ("NVIDIA H100 80GB HBM3", "SYS", 22),
        ("Tesla V100-SXM2-32GB", "PIX", 12),
        ("a card nobody knows", "NV1", 20),
        ("a card nobody knows", "NET", 12),
    ],
)
def test_published_bandwidth(card, kind, gigabytes):
    assert speeds.bandwidth(kind, True, card) / 1e9 == pytest.approx(gigabytes)


def test_another_model_has_no_figures():
    assert speeds.flops("NVIDIA GeForce RTX 4090") == pytest.approx(82.58e12)
    assert speeds.flops("NVIDIA GeForce RTX 4090 Laptop GPU") is None
    assert speeds.flops("Tesla V100-PCIE-16GB") < speeds.flops("Tesla V100-SXM2-16GB")


def test_every_published_number_has_its_source():
    rows = list(csv.DictReader((files("colonnade.describe") / "speeds.csv").read_text().splitlines()))
    assert len(rows) > 30
    assert all(row["source"] and float(row["value"]) > 0 for row in rows)


@pytest.mark.parametrize(
    ("card", "gigabytes"),
    [
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2000),
        ("NVIDIA A100 80GB PCIe", 1940),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
    ],
)
def test_the_memory_of_each_model(card, gigabytes):
    assert speeds.of_card(card, "memory") == gigabytes * 1e9
