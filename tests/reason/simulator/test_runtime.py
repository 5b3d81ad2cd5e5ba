from colonnade.reason.simulator import runtime


def test_systems_that_overlap_have_buckets_or_send_every_gradient():
    assert runtime.ENGINE.overlap
    assert runtime.DDP.bucket == 25 * 2**20
    assert not runtime.MEGATRON.overlap


def test_the_jitter_is_one_for_all_systems_that_were_measured_on_cards():
    systems = (runtime.ENGINE, runtime.DDP, runtime.GRAPH, runtime.MEGATRON)
    assert {system.jitter for system in systems} == {runtime.JITTER}


def test_systems_have_names():
    assert runtime.SYSTEMS["colonnade"] is runtime.ENGINE
    assert runtime.SYSTEMS["horovod"].bucket == 64 * 2**20
    assert runtime.SYSTEMS["fsdp"].overlap
    assert len({id(system) for system in runtime.SYSTEMS.values()}) == len(runtime.SYSTEMS)
