from colonnade.describe.device_order import in_order


def test_by_kind_and_number():
    assert in_order(["GPU:2", "CPU:10", "host", "CPU:9"]) == ["CPU:9", "CPU:10", "GPU:2", "host"]
