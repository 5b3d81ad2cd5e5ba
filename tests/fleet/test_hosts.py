import pytest

from colonnade.errors import InvalidArgument
from colonnade.fleet.hosts import Host, hosts


def test_names_users_and_cards():
    assert hosts("a, b:2 ,me@c.example.org:0,10.0.0.1,[fd00::1]:4") == (
        Host("a"),
        Host("b", None, 2),
        Host("c.example.org", "me", 0),
        Host("10.0.0.1"),
        Host("fd00::1", None, 4),
    )
    assert hosts("me@a")[0].target == "me@a"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,,b",
        "a,",
        "-oProxyCommand=reboot",
        "a b",
        "a;reboot",
        "a$(reboot)",
        "`reboot`",
        "a|b",
        "a&b",
        "a/b",
        "a\nb",
        "a:two",
        "a:-1",
        "a:1:2",
        "@a",
        "-l@a",
        "a@b@c",
        "me@",
        "[a]",
        "[fd00::1",
        "fd00::1",
        "*",
        "%h",
        "ssh://a",
        "a:99999",
    ],
)
def test_what_is_no_machine_is_refused(text):
    with pytest.raises(InvalidArgument, match=r"run cannot work with:\n  --machines="):
        hosts(text)


def test_all_that_is_wrong_at_once():
    with pytest.raises(InvalidArgument) as refused:
        hosts("a,-b,a,c d")
    assert len(refused.value.problems) == 3
