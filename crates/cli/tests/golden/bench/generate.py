"""Writes `dcp` in this directory: what `dtensor bench checkpoint --size 6 --classic` expects, in PyTorch's classic format.

Tests read the committed files and need neither this script nor Python. It was run with PyTorch 2.15:

    python generate.py

16 tensors of 6 x 6, cut in rows over 2 ranks; element (row, column) of tensor k is (3 row + column + 17 k) mod 4093.
"""

import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

SIZE, RANKS = 6, 2
HERE = os.path.dirname(os.path.abspath(__file__))


def whole(k):
    index = torch.arange(SIZE, dtype=torch.float32)
    return (3 * index.unsqueeze(1) + index + 17 * k) % 4093


def save(rank, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = slice(rank * SIZE // RANKS, (rank + 1) * SIZE // RANKS)
    state = {f"t{k}": DTensor.from_local(whole(k)[rows].clone(), mesh, [Shard(0)]) for k in range(16)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path))
    dist.destroy_process_group()


if __name__ == "__main__":
    path = os.path.join(HERE, "dcp")
    shutil.rmtree(path, ignore_errors=True)
    mp.spawn(save, (path,), RANKS)
