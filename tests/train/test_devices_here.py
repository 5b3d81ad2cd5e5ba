from colonnade.run.train.devices_here import devices_here


def test_the_devices_of_this_process_share_its_cores():
    found = devices_here()
    assert len(found) == 8
    assert [device.name for device in found.devices[:2]] == ["CPU:0", "CPU:1"]
    assert len({device.cores for device in found.devices}) == 1
    assert found.devices[0].cores >= 1
    assert found.link(0, 7).kind == "MEM"
