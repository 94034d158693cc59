"""Writes `sharded_tensors`: a state dict with ShardedTensors, saved by two ranks with `torch.save`, each its own shards.

It was run with PyTorch 2.15, on loopback. Every element is its own position in the whole tensor.

    python sharded_tensors.py sharded_tensors
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata


def numbered(spec, size):
    tensor = sharded_tensor.empty(spec, *size)
    whole = torch.arange(tensor.size().numel(), dtype=torch.float32).reshape(size)
    for shard in tensor.local_shards():
        box = zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes)
        shard.tensor.copy_(whole[tuple(slice(at, at + n) for at, n in box)])
    return tensor


def run(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    rows = ChunkShardingSpec(dim=0, placements=["rank:0/cpu", "rank:1/cpu"])
    columns = ChunkShardingSpec(dim=1, placements=["rank:1/cpu", "rank:0/cpu"])
    boxes = EnumerableShardingSpec([
        ShardMetadata([0, 0], [4, 1], "rank:1/cpu"),
        ShardMetadata([0, 1], [1, 3], "rank:0/cpu"),
        ShardMetadata([1, 1], [3, 3], "rank:1/cpu"),
    ])
    parameter = torch.nn.Parameter(numbered(columns, (2, 4)))
    state = {
        "rows": numbered(rows, (5, 3)),
        "deep": {"boxes": numbered(boxes, (4, 4)), "param": parameter},
        "bias": torch.arange(3, dtype=torch.float64),
        "step": 7,
        # Another one on every rank.
        "rng": torch.tensor([rank, 5]),
        "rank": rank,
    }
    torch.save(state, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    mp.spawn(run, args=(sys.argv[1],), nprocs=2)
