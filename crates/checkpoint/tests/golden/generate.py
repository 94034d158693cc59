"""Writes the small files of PyTorch in this directory, and beside each a JSON file with what it holds.

Tests read the committed files and need neither this script nor Python. It was run with PyTorch 2.15, NumPy,
safetensors and zstandard:

    python generate.py

`four_ranks` is not from here: a model on a mesh of 2 x 2 ranks, saved by PyTorch 2.15 with `FileSystemWriter` (dcp) and with
`HuggingFaceStorageWriter(save_distributed=True)` (hf); `full.safetensors` has the whole tensors.
"""

import argparse
import collections
import json
import os
import shutil
import struct

import numpy
import torch
import torch.distributed.checkpoint as dcp

NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16", torch.uint32: "U32",
    torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
    torch.complex128: "C128",
}


def expected(state, tensors=None, values=None, name=""):
    """Tensors as hex digits of their bytes in row-major order, values with their kinds."""
    tensors, values = ({}, {}) if tensors is None else (tensors, values)
    inside = lambda key: f"{name}.{key}" if name else str(key)
    if isinstance(state, argparse.Namespace):
        state = vars(state)
    if isinstance(state, torch.Tensor):
        plain = state.detach().contiguous().clone()
        raw = bytes(plain.view(-1).view(torch.uint8).tolist()) if plain.numel() else b""
        tensors[name] = {"dtype": NAMES[state.dtype], "shape": list(state.shape), "hex": raw.hex()}
    elif isinstance(state, dict) and state:
        for key, value in state.items():
            expected(value, tensors, values, inside(key))
    elif isinstance(state, (list, tuple)) and state:
        for position, value in enumerate(state):
            expected(value, tensors, values, inside(position))
    elif isinstance(state, dict):
        values[name] = {"dict": 0}
    elif isinstance(state, (list, tuple)):
        values[name] = {"list": 0}
    elif state is None:
        values[name] = {"nothing": 0}
    elif isinstance(state, (bool, numpy.bool_)):
        values[name] = {"bool": bool(state)}
    elif isinstance(state, (int, numpy.integer)):
        values[name] = {"int": int(state)}
    elif isinstance(state, (float, numpy.floating)):
        values[name] = {"float": struct.pack(">d", float(state)).hex()}
    elif isinstance(state, (bytes, bytearray)):
        values[name] = {"bytes": bytes(state).hex()}
    else:
        values[name] = {"text": str(state)}
    return {"tensors": tensors, "values": values}


def note(path, state, name=""):
    with open(path + ".json", "w") as file:
        json.dump(expected(state, name=name), file, indent=1)


def save(path, state, name="", **options):
    torch.save(state, path, **options)
    note(path, state, name)


def optimizer_state():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def every_dtype():
    plain = torch.tensor([[0, 1, 2], [3, 4, 5]])
    state = {str(dtype).removeprefix("torch."): plain.to(torch.float32).to(dtype) for dtype in NAMES if dtype.is_floating_point}
    state |= {str(dtype).removeprefix("torch."): plain.to(dtype) for dtype in NAMES if not dtype.is_floating_point}
    return state


def views():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    tied = torch.arange(6, dtype=torch.int32)
    return {
        "transposed": base.t(), "column": base[:, 2], "block": base[1:3, 2:5], "every_other": base[::2, ::3], "whole": base,
        "one_element": base[3, 5], "one_row_of_dims": base[2:3].t(), "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": base[:0], "empty_behind": base[4:, 6:], "tied": tied, "tied_again": tied, "tail": tied[4:],
        "repeated": torch.tensor([[1.0], [2.0]]).expand(2, 3), "permuted": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        "parameter": torch.nn.Parameter(base[:, 1:3]), "buffer": torch.nn.Buffer(torch.ones(2, dtype=torch.bfloat16)),
    }


def plain_values():
    return {
        "none": None, "yes": True, "no": False, "zero": 0, "small": -1, "large": -(2**40), "largest": 2**63 - 1, "smallest": -(2**63),
        "float": 0.1, "nan": float("nan"), "infinite": float("-inf"), "text": "héllo\nwörld", "empty text": "", "bytes": b"\x00\xff\x80a",
        "no bytes": b"", "bytearray": bytearray(b"xyz"), "list": [1, [2.5, "three"], []], "tuple": (0.9, 0.999), "empty": {},
        "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda", 1), "nested": {1: {"a": {True: "deep"}}},
        "ordered": collections.OrderedDict(b=1, a=2), "default": collections.defaultdict(list, x=[1]),
        "options": argparse.Namespace(lr=0.01, layers=[1, 2]), "float32": numpy.float32(1.5), "int64": numpy.int64(-3),
        "uint8": numpy.uint8(200), "bool": numpy.bool_(True), "same": ["again"] * 3, "digits.with.dots": 1,
    }


def classic(path, state, **options):
    shutil.rmtree(path, ignore_errors=True)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, **options), no_dist=True)


def hugging_face(path, state, mapping, **options):
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    shutil.rmtree(path, ignore_errors=True)
    writer = HuggingFaceStorageWriter(path, fqn_to_index_mapping=mapping, **options)
    dcp.save(state, storage_writer=writer, no_dist=True)


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    torch.manual_seed(0)
    model, optimizer = optimizer_state()

    os.makedirs("torch_save", exist_ok=True)
    save("torch_save/model.pt", model.state_dict())
    save("torch_save/training.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3})
    save("torch_save/dtypes.pth", every_dtype())
    save("torch_save/views.bin", views())
    save("torch_save/values.pt", plain_values())
    save("torch_save/alone.pt", torch.arange(5, dtype=torch.int16), name="alone")
    save("torch_save/protocol4.pt", {"model": model.state_dict(), "values": plain_values()}, pickle_protocol=4)
    torch.serialization.set_crc32_options(False)
    save("torch_save/without_crc.pt", {"w": torch.arange(4)})
    torch.serialization.set_crc32_options(True)
    torch.save({"w": torch.arange(4)}, "torch_save/legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"w": torch.ones(2, dtype=torch.complex64).conj()}, "torch_save/conjugated.pt")
    torch.save({"w": torch.eye(2).to_sparse()}, "torch_save/sparse.pt")
    torch.save({"path": os.path.join}, "torch_save/function.pt")
    torch.save({"seed": 2**64}, "torch_save/large_integer.pt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), "torch_save/script.pt")

    nested = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "views": {name: view for name, view in views().items() if name in ("transposed", "block", "empty", "scalar", "repeated")},
        "training": {"step": 12, "losses": [0.5, 0.25], "name": "run", "mixed": (torch.arange(3), "text", None)},
        "random": torch.get_rng_state()[:16],
    }
    classic("distcp_nested", nested, thread_count=3)
    note("distcp_nested", nested)
    one_file_each = {"a": torch.arange(3.0), "b": torch.arange(4), "n": 1}
    classic("distcp_files", one_file_each, single_file_per_rank=False)
    note("distcp_files", one_file_each)
    from torch.distributed.checkpoint._extension import ZStandard

    classic("distcp_compressed", {"a": torch.arange(3.0)}, _extensions=[ZStandard()])

    floats = {"embed": torch.randn(5, 3), "layers.0.w": torch.randn(3, 4).bfloat16(), "layers.0.b": torch.randn(4), "zero": torch.randn(0, 2)}
    several = floats | {"steps": torch.arange(4), "flag": torch.tensor(True), "mask": torch.tensor([True, False])}
    hugging_face("hf_index", several, {name: 1 + position % 3 for position, name in enumerate(several)})
    note("hf_index", several)
    hugging_face("hf_consolidated", floats, {name: 1 + position % 2 for position, name in enumerate(floats)},
                 save_distributed=True, enable_consolidation=True)
    note("hf_consolidated", floats)


main()
