"""Texts that tell the links of a machine: what nvidia-smi prints, and what TensorFlow logs."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from topologies import PAIRS, machines, peers

import colonnade as cn
from colonnade.describe import speeds
from colonnade.describe.topology import Topology

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


LOG = "\n".join(
    "I tensorflow/core/common_runtime/gpu/gpu_init.cc:59] "
    f"cannot enable peer access from device ordinal {i} to device ordinal {j}"
    for i in range(4)
    for j in range(4)
    if not PAIRS[i][j]
)


# What terminals and those who record them put between the letters.
TERMINAL = (
    *(
        "\x1b[4m",
        "\x1b[38;5;208m",
        "\x1b[38:2::255:0:0m",
        "\x1b[?25l",
        "\x1b[2K\x1b[1G",
        "\x1b[0 q",
        "\x9b1m",
    ),
    *(
        "\x1b(B\x1b[m",
        "\x1b)0",
        "\x1b]0;me@host: ~\x07",
        "\x1b]8;;file:/etc\x1b\\",
        "\x1bc",
        "\x1b7",
        "\x1b=",
    ),
    *("^[[4m", "[0m", "\x0f", "\x1b#8"),
)


@st.composite
def forms(draw):
    """A way to print a matrix: what `nvidia-smi` does differently from version to version, and people do."""
    return {
        "tabs": draw(st.booleans()),
        "adapters": draw(st.sampled_from([[], ["NIC0"], ["mlx5_0", "mlx5_1"], ["NIC0", "NIC1", "NIC2"]])),
        "affinity": draw(st.sampled_from(["none", "cpu", "numa", "all", "empty cpu"])),
        "legend": draw(st.booleans()),
        "colour": draw(st.sampled_from(["", *TERMINAL])),
        "prompt": draw(st.booleans()),
        "end": draw(st.sampled_from(["\n", "\r\n"])),
    }


def printed(kinds, numa, form):
    """What `nvidia-smi topo -m` would print in that form."""
    n, extra = len(kinds), form["adapters"]
    cards = [f"GPU{i}" for i in range(n)]
    headings = {
        "none": [],
        "cpu": ["CPU Affinity"],
        "numa": ["CPU Affinity", "NUMA Affinity"],
        "all": ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"],
        "empty cpu": ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"],
    }[form["affinity"]]
    rows = [["", *cards, *extra, *headings]]
    for i, row in enumerate(kinds):
        affinity = ["" if form["affinity"] == "empty cpu" else "0-15,32-47", str(numa[i]), "N/A"][
            : len(headings)
        ]
        rows.append(
            [cards[i], *(" X " if cell == "X" else cell for cell in row), *("PHB" for _ in extra), *affinity]
        )
    for at, name in enumerate(extra):
        rows.append(
            [name, *("PHB" for _ in cards), *(" X " if at == other else "PIX" for other in range(len(extra)))]
        )
    if form["tabs"]:
        lines = ["\t".join(row) for row in rows]
    else:
        lines = [
            "".join(
                cell.ljust(16 if " " in rows[0][min(at, len(rows[0]) - 1)] else 8)
                for at, cell in enumerate(row)
            )
            for row in rows
        ]
    if form["colour"]:
        mark = form["colour"]
        lines = [f"{mark}{line[:3]}{mark}{line[3:]}\x1b[0m" for line in lines]
    if form["prompt"]:
        lines.insert(0, "(base) me@host3:~$ nvidia-smi topo -m")
    return form["end"].join(lines + (LEGEND.split("\n") if form["legend"] else []))


def plain(rows):
    """What `nvidia-smi topo -p2p r` would print."""
    names = [f"GPU{i}" for i in range(len(rows))]
    lines = [" \t" + "\t".join(names) + "\t"]
    lines += [f" {name}\t" + "\t".join(row) + "\t" for name, row in zip(names, rows, strict=True)]
    return (
        "\n".join(lines)
        + "\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    )


@settings(max_examples=150, deadline=None)
@given(machines(), forms(), st.sampled_from(["none", "apart", "below"]))
def test_every_form_reads_back_equal(machine, form, where):
    kinds, codes, numa = machine
    text = printed(kinds, numa, form)
    if where == "apart":
        topology = Topology.from_text(text, p2p=plain(codes))
    else:
        topology = Topology.from_text(text if where == "none" else f"{text}\n{plain(codes)}")
    n = range(len(kinds))
    assert [[topology.link(i, j).kind for j in n] for i in n] == kinds
    knows_numa = form["affinity"] in ("numa", "all", "empty cpu")
    assert [device.numa for device in topology.devices] == (numa if knows_numa else [None] * len(kinds))
    if where == "none":
        assert peers(topology) == [[speeds.suggests_peer(kind) for kind in row] for row in kinds]
    else:
        assert peers(topology) == [[code in ("OK", "X") for code in row] for row in codes]


WORDS = st.sampled_from(
    [
        *("GPU0", "GPU1", "GPU2", "X", "PIX", "SYS", "NV99", "OK", "CNS", "mlx5_0", "CPU Affinity"),
        *("\n", "\t", " ", "0-7", "0: Y N", "DMA: 0 1", "device ordinal 9", "\x1b[4m"),
        "cannot enable peer access from device ordinal 1 to device ordinal 2",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.text(), st.lists(WORDS, max_size=40).map(" ".join)),
    st.one_of(st.none(), st.text(), st.lists(WORDS).map("\n".join)),
)
@example("GPU0 GPU1\nGPU0 X\nGPU1 PIX X", None)
@example("device ordinal 1 cannot enable peer access from device ordinal 999999 to device ordinal 0", None)
def test_garbage_gives_an_error_of_the_user_and_nothing_else(text, p2p):
    refused = None
    try:
        topology = Topology.from_text(text, p2p)
    except ValueError as error:
        refused = error
    if refused is None:
        assert len(topology) >= 1
    else:
        assert isinstance(refused, cn.InvalidArgument)
        assert all(p.argument in ("text", "p2p") and p.rule and p.fix for p in refused.problems)


@settings(max_examples=100, deadline=None)
@given(machines(), st.data())
def test_a_damaged_matrix_is_refused(machine, data):
    kinds, _, _ = machine
    lines = plain(kinds).split("\n")[: 1 + len(kinds)]
    at = data.draw(st.integers(0, len(kinds)))
    del lines[at]
    with pytest.raises(cn.InvalidArgument):
        Topology.from_text("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no matrix"),
        ("GPU0\tGPU1\nGPU0\tX\tPIX", "GPU1'.*has a column and no row"),
        ("GPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tX", "has 1 cells for 2 columns"),
        ("GPU0\tGPU1\nGPU0\tX\tFOO\nGPU1\tFOO\tX", "'FOO': is no link"),
        ("GPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX", "the other way round"),
        ("GPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tX\tPIX", "not X"),
        (None, "must be text"),
    ],
)
def test_what_is_wrong_with_a_text(text, says):
    with pytest.raises(cn.InvalidArgument, match=says):
        Topology.from_text(text)


def test_peer_access_of_another_machine_is_refused():
    with pytest.raises(cn.InvalidArgument, match=r"p2p=.*of cards 0, 1, 2, and the links are for 0, 1\."):
        Topology.from_text(
            plain([["X", "PIX"], ["PIX", "X"]]),
            p2p=plain([["X", "U", "U"], ["U", "X", "U"], ["U", "U", "X"]]),
        )
    with pytest.raises(cn.InvalidArgument, match="same machine"):
        Topology.from_text(plain([["X", "PIX"], ["PIX", "X"]]), p2p=LOG)


SYS4 = plain([["X" if i == j else "SYS" for j in range(4)] for i in range(4)])


ALL_OK = [["X" if i == j else "OK" for j in range(4)] for i in range(4)]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda table: table.replace("GPU3\tOK", "GPU3\t??"),
            r"'\?\?': is no word .* row GPU3 and column GPU0",
        ),
        (lambda table: table.replace("GPU3\tOK", "GPU3"), "GPU3'.*has 3 cells for 4 columns"),
        (lambda table: table.replace(" GPU2\tOK", " other\tOK"), "GPU2'.*has a column and no row"),
        (lambda table: table + table.replace("GPU3\tOK", "GPU3\tNS"), "two matrices of peer access"),
        (lambda table: table.replace("OK", "PIX"), "two matrices of links"),
        (
            lambda table: table.replace("GPU3", "GPU4"),
            r"of cards 0, 1, 2, 4, and the links are for 0, 1, 2, 3",
        ),
    ],
)
def test_a_damaged_table_beside_a_good_one_is_refused(damage, says):
    table = damage(plain(ALL_OK))
    with pytest.raises(cn.InvalidArgument, match=f"text=.*{says}"):
        Topology.from_text(f"{SYS4}\n{table}")
    if "links" not in says or "and the links" in says:
        with pytest.raises(cn.InvalidArgument, match=f"p2p=.*{says}"):
            Topology.from_text(SYS4, p2p=table)


def test_peer_access_is_matched_by_name():
    """The columns of the second table are in another order; only 2 reaches 0."""
    order = [3, 2, 0, 1]
    lines = ["\t" + "\t".join(f"GPU{j}" for j in order)]
    for i in order:
        codes = ["X" if i == j else "OK" if (i, j) == (2, 0) else "CNS" for j in order]
        lines.append("\t".join([f"GPU{i}", *codes]))
    topology = Topology.from_text(SYS4, p2p="\n".join(lines))
    assert [(i, j) for i in range(4) for j in range(4) if i != j and topology.link(i, j).peer] == [(2, 0)]


def test_a_log_beside_a_matrix_tells_peer_access():
    for text, p2p in ((f"{SYS4}\n{LOG}", None), (f"{LOG}\n{SYS4}", None), (SYS4, LOG)):
        topology = Topology.from_text(text, p2p=p2p)
        assert peers(topology) == PAIRS
        assert topology.link(0, 1).kind == "SYS"
    # What nvidia-smi says of it counts more; and a log of another machine is refused.
    assert all(map(all, peers(Topology.from_text(f"{SYS4}\n{LOG}", p2p=plain(ALL_OK)))))
    with pytest.raises(cn.InvalidArgument, match="cards 0, 1, 2, 3, and the links are for 0, 1"):
        Topology.from_text(plain([["X", "PIX"], ["PIX", "X"]]) + LOG)
    # Devices that the log does not name are as their links suggest.
    short = "cannot enable peer access from device ordinal 0 to device ordinal 1"
    pix = plain([["X" if i == j else "PIX" for j in range(3)] for i in range(3)])
    assert peers(Topology.from_text(pix + short)) == [[True, False, True], [True] * 3, [True] * 3]


def test_old_label():
    assert Topology.from_text(plain([["X", "SOC"], ["SOC", "X"]])).link(0, 1).kind == "SYS"


def test_the_log_of_the_article():
    topology = Topology.from_text(LOG)
    assert peers(topology) == PAIRS
    assert topology.link(0, 1).kind == "PHB"
    assert topology.link(1, 2).kind == "SYS"
    all_but_one = plain(
        [["X" if i == j else "NS" if (i, j) == (0, 1) else "OK" for j in range(4)] for i in range(4)]
    )
    assert not Topology.from_text(LOG, p2p=all_but_one).link(0, 1).peer


@pytest.mark.parametrize(
    "heading",
    ["DMA: 0 1 2 3 ", "     0 1 2 3 "],  # before and after TensorFlow 1.11
)
def test_the_matrix_in_the_log(heading):
    diagonal = "Y" if "DMA" in heading else "N"
    start = "2018-10-24 10:54:20.831299: I tensorflow/core/common_runtime/gpu/gpu_device.cc:977] "
    cells = [["Y" if PAIRS[i][j] else "N" for j in range(4)] for i in range(4)]
    for i in range(4):
        cells[i][i] = diagonal
    lines = [start + heading] + [f"{start}{i}:   {' '.join(cells[i])} " for i in range(4)]
    lines.append(
        f"{start}Created TensorFlow device (/device:GPU:3 with 9854 MB memory) -> "
        "physical GPU (device: 3, name: Tesla K40m, pci bus id: 0000:83:00.0, compute capability: 3.5)"
    )
    topology = Topology.from_text("\n".join(lines))
    assert peers(topology) == PAIRS
    assert topology.devices[3].name == "Tesla K40m"


def test_the_other_wording_of_the_log_and_a_device_that_reaches_all():
    text = "Peer access not supported between device ordinals 0 and 1\nAdding visible gpu devices: 0, 1, 2\n"
    assert peers(Topology.from_text(text)) == [[True, False, True], [True, True, True], [True, True, True]]
