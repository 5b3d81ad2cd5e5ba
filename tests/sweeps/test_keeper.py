import pytest

from colonnade.fleet.lease import Pool, ask
from colonnade.sweeps import keeper


@pytest.mark.parametrize(
    ("command", "among", "wanted"),
    [(("other",), ("a", "b"), True), (("ours",), ("a", "b"), False), (("other",), ("c",), False)],
)
def test_cards_are_wanted_by_others_who_wait_for_them(tmp_path, command, among, wanted):
    with ask(Pool(("a", "b")), 1, command=("ours",), directory=tmp_path / "leases") as lease:
        lease.wait()
        assert not keeper._is_wanted(lease, tmp_path / "leases")
        with ask(Pool(among), 1, command=command, directory=tmp_path / "leases"):
            assert keeper._is_wanted(lease, tmp_path / "leases") is wanted
