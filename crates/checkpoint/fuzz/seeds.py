"""Writes `seeds/TARGET` in this directory: good inputs of every fuzz target, from the golden files of the tests.

    python3 seeds.py
"""

import glob
import json
import os
import struct
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "../tests/golden")


def golden(pattern):
    paths = sorted(glob.glob(os.path.join(GOLDEN, pattern), recursive=True, include_hidden=True))
    return [path for path in paths if os.path.isfile(path)]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def put(target, seeds):
    directory = os.path.join(HERE, "seeds", target)
    os.makedirs(directory, exist_ok=True)
    for number, seed in enumerate(seeds):
        with open(os.path.join(directory, str(number)), "wb") as file:
            file.write(seed)


def pickles(paths):
    for path in filter(zipfile.is_zipfile, paths):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                # One of the archives has no checksums, which Python insists on.
                if name.endswith("/data.pkl") and archive.getinfo(name).CRC:
                    yield archive.read(name)


saved = [path for path in golden("torch_save/*") + golden("sharded_tensors/*") if not path.endswith(".json")]
put("pickle", map(read, golden("**/.metadata")))
put("zip", map(read, saved))
put("torch_save", pickles(saved))
put("index", map(read, golden("**/*.index.json")))
put("distcp", [bytes([number]) + read(path) for number, path in enumerate(golden("distcp_files/*.distcp"))])

files = [read(path) for path in golden("four_ranks/hf/*.safetensors") + golden("hf_index/*.safetensors")]
put("safetensors", [struct.pack("<H", len(one)) + one + other for one, other in zip(files, files[1:]) if len(one) < 1 << 16])

# The checksums are not those of the data, but the parsers are before them.
HASH = "0" * 32
tensors = {
    "a": {"shape": [2, 3], "layout": "[R] on x=1", "block": 16, "xxh3": [HASH] * 2},
    "b": {"shape": [5], "layout": "[R] on x=1", "block": 16, "xxh3": [HASH]},
}
header = {
    "__metadata__": {
        "format": "pt",
        "DCP_VERSION": "1.0",
        "DCP_SHARDING_INFO": json.dumps({"a": {"saved_offsets": [0, 0]}, "b": {"saved_offsets": [0]}}),
        "dtensor.version": "1",
        "dtensor.tensors": json.dumps(tensors),
    },
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]},
}
put("native_header", [json.dumps(header).encode()])
manifest = {
    "checksum": HASH,
    "version": 1,
    "id": "0123456789abcdef",
    "time": 1_700_000_000,
    "files": [{"name": "shard-00001-model-00001-of-00001.safetensors", "size": 600, "header_xxh3": HASH}],
    "values": {"step": 7},
    "tensors": 2,
    "bytes": 34,
}
put("manifest", [json.dumps(manifest, indent=2).encode()])
