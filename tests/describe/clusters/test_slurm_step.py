import pytest

from colonnade.describe.clusters.slurm_step import MOST, PORTS, nodes, read, tasks_per_node

STEP = {
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "n[01-03]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_PROCID": "3",
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": "1",
}


def rules(environ):
    problems = []
    read(environ, problems)
    return [str(problem) for problem in problems]


def test_uneven_tasks_are_counted_host_by_host():
    addresses, rank = read(STEP, [])
    hosts, ports = zip(*(address.split(":") for address in addresses), strict=True)
    assert hosts == ("n01", "n01", "n02", "n02", "n03")
    first = int(ports[0])
    assert list(map(int, ports)) == [first, first + 1, first, first + 1, first]
    assert rank == 3


def test_every_task_finds_the_same_addresses_and_a_rank_of_its_own():
    """Also where Slurm deals the tasks out in turns."""
    seen = []
    for proc, (node, local) in enumerate([(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]):
        own = {"SLURM_NODEID": str(node), "SLURM_LOCALID": str(local), "SLURM_PROCID": str(proc)}
        seen.append(read(STEP | own, []))
    assert len({addresses for addresses, _ in seen}) == 1
    assert sorted(rank for _, rank in seen) == [0, 1, 2, 3, 4]


def test_steps_that_follow_have_other_ports_and_all_are_below_those_of_connections():
    bases = []
    for job in range(0, 3_000_000, 997):
        addresses, _ = read(STEP | {"SLURM_JOB_ID": str(job)}, [])
        bases.append(int(addresses[0].split(":")[1]))
        assert bases[-1] in PORTS
        assert bases[-1] + 1 in PORTS
    next_job, _ = read(STEP | {"SLURM_JOB_ID": "42"}, [])
    next_step, _ = read(STEP | {"SLURM_STEP_ID": "2"}, [])
    again, _ = read(STEP | {"SLURM_RESTART_COUNT": "1"}, [])
    this, _ = read(STEP, [])
    first, _ = read(STEP | {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}, [])  # 42 + 0 = 41 + 1
    for other in (next_job, next_step, again, first):
        assert not set(this) & set(other)


def test_a_port_can_be_given():
    addresses, _ = read(STEP | {"COLONNADE_PORT": "9000"}, [])
    assert addresses[:2] == ("n01:9000", "n01:9001")


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_JOB_ID": "4", "SLURM_NTASKS": "8"}]
)
def test_outside_a_step_and_alone_in_one_there_is_no_cluster(environ):
    problems = []
    assert read(environ, problems) is None
    assert problems == []


@pytest.mark.parametrize("name", sorted(STEP.keys() - {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}))
def test_a_variable_that_is_missing_is_named_with_the_remedy(name):
    (rule,) = rules({k: v for k, v in STEP.items() if k != name})
    assert rule.startswith(f"{name}=None: is missing")
    assert "srun" in rule


def test_all_that_is_missing_at_once():
    assert len(rules({"SLURM_STEP_NUM_TASKS": "2"})) == 6


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"SLURM_STEP_NUM_TASKS": "two"}, "must be a whole number"),
        ({"SLURM_STEP_NUM_TASKS": "6"}, "is of 5 tasks, but SLURM_STEP_NUM_TASKS is 6"),
        ({"SLURM_STEP_NODELIST": "n[01-02]"}, "is of 3 hosts, but SLURM_STEP_NODELIST has 2"),
        ({"SLURM_STEP_NODELIST": "n[01-"}, "must be a list of hosts"),
        ({"SLURM_STEP_NODELIST": "a b,c,d"}, "no name of a host"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2x2"}, "must be numbers of tasks"),
        ({"SLURM_NODEID": "3"}, "there is no such host"),
        ({"SLURM_LOCALID": "2"}, "there is no such task: n02 has 2"),
        ({"SLURM_NODEID": "-1"}, "must be a whole number"),
        ({"COLONNADE_PORT": "65535"}, "with 1 more after it"),
        ({"COLONNADE_PORT": "http"}, "must be a port"),
    ],
)
def test_what_contradicts_itself_is_named(changed, says):
    (rule,) = rules(STEP | changed)
    assert says in rule


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("a,b", ["a", "b"]),
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[008-010]", ["n008", "n009", "n010"]),
        ("r[1-2]n[01-02],login.example.org", ["r1n01", "r1n02", "r2n01", "r2n02", "login.example.org"]),
        ("n[1]-ib", ["n1-ib"]),
    ],
)
def test_lists_of_hosts(text, hosts):
    assert nodes(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", ",a", "n[", "n]", "n[]", "n[1-]", "n[2-1]", "n[a-b]", "n[1,,2]", "n[[1]]", "-n", "n;x",
     "n[1-99999999]", "n[0-60000][0-60000]", "n[1-2" + "]" * 50],
)  # fmt: skip
def test_lists_that_are_none(text):
    with pytest.raises(ValueError, match=r"must be|no name|no range|no number|more than"):
        nodes(text)


def test_tasks_per_node():
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("4") == [4]
    for text in ("", "x", "2(3)", "2(x)", "1,", f"1(x{MOST + 1})", f"2(x{MOST})"):
        with pytest.raises(ValueError, match=r"must be|more than"):
            tasks_per_node(text)
