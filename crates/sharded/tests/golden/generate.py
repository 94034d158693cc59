"""Writes `sharded_tensor`: a checkpoint of PyTorch's ShardedTensor, saved by two processes.

Tests read the committed files and need neither this script nor Python. It was run with PyTorch 2.15:

    python generate.py

Every element is its position in the tensor, in row-major order.
"""

import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec

PLACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sharded_tensor")


def filled(spec, *size, dtype):
    tensor = sharded_tensor.empty(spec, *size, dtype=dtype)
    whole = torch.arange(torch.Size(size).numel()).reshape(size).to(dtype)
    for shard in tensor.local_shards():
        at = [slice(o, o + n) for o, n in zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes)]
        shard.tensor.copy_(whole[tuple(at)])
    return tensor


def main(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    boxes = EnumerableShardingSpec([
        ShardMetadata([0, 0], [7, 1], "rank:1/cpu"),
        ShardMetadata([0, 1], [2, 3], "rank:0/cpu"),
        ShardMetadata([2, 1], [5, 3], "rank:1/cpu"),
    ])
    chunks = ChunkShardingSpec(dim=0, placements=["rank:1/cpu", "rank:0/cpu"])
    state = {
        "boxes": filled(boxes, 7, 4, dtype=torch.float32),
        "chunks": filled(chunks, 5, 3, dtype=torch.int64),
        "step": 3,
    }
    dcp.save(state, storage_writer=dcp.FileSystemWriter(PLACE))
    dist.destroy_process_group()


if __name__ == "__main__":
    shutil.rmtree(PLACE, ignore_errors=True)
    mp.spawn(main, nprocs=2)
