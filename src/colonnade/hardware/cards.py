"""The NVIDIA cards of this machine, as NVML reports them."""

from dataclasses import dataclass

import pynvml


@dataclass(frozen=True)
class Card:
    """A physical card. `index` is NVML's, which is PCI bus order."""

    index: int
    uuid: str
    bus_id: str
    name: str
    memory: int  # bytes

    @property
    def mib(self) -> int:
        return self.memory // 2**20


def detect() -> tuple[Card, ...]:
    """The cards of this machine in PCI bus order; empty where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_card(i) for i in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _card(index: int) -> Card:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Card(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        bus_id=pynvml.nvmlDeviceGetPciInfo(handle).busId,
        name=pynvml.nvmlDeviceGetName(handle),
        memory=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
    )
