"""Machines with cards: some that were seen, and any that there may be."""

from itertools import combinations

from hypothesis import strategies as st

KINDS = ("NV1", "NV2", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS")
CODES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
PAIRS = [[i // 2 == j // 2 for j in range(4)] for i in range(4)]


def peers(topology):
    n = range(len(topology))
    return [[topology.link(i, j).peer for j in n] for i in n]


@st.composite
def machines(draw):
    """Kinds, codes of peer access and NUMA nodes of 1 to 16 cards."""
    n = draw(st.integers(1, 16))
    kinds = [["X"] * n for _ in range(n)]
    codes = [["X"] * n for _ in range(n)]
    for i, j in combinations(range(n), 2):
        kinds[i][j] = kinds[j][i] = draw(st.sampled_from(KINDS))
        codes[i][j], codes[j][i] = draw(st.sampled_from(CODES)), draw(st.sampled_from(CODES))
    return kinds, codes, draw(st.lists(st.integers(0, 7), min_size=n, max_size=n))
