"""Which processes are on which card, as NVML reports them."""

import pynvml


def occupants() -> dict[str, set[int]]:
    """The processes that compute on each card, by the card's UUID; empty where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {pynvml.nvmlDeviceGetUUID(handle): _processes(handle) for handle in handles}
    finally:
        pynvml.nvmlShutdown()


def _processes(handle: object) -> set[int]:
    try:
        return {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except pynvml.NVMLError_NotSupported:
        return set()  # some virtual and older cards keep no such list
