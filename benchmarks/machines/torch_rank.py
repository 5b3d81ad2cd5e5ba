"""A program of a group that sums by torch's gloo. Orders are `BYTES COUNT`."""

import os
from typing import Any

import torch
import torch.distributed as dist
from orders import obey, place


def main() -> None:
    rank, addresses = place()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // len(addresses)))
    where = f"tcp://{addresses[0]}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=len(addresses))

    def many(num_bytes: str, count: str) -> dict[str, Any]:
        vector = torch.ones(int(num_bytes) // 4)
        for _ in range(int(count)):
            dist.all_reduce(vector)
            vector /= len(addresses)
        return {"total": float(vector.sum())}

    obey(many)


if __name__ == "__main__":
    main()
