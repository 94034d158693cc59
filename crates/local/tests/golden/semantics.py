"""Writes semantics.json: what PyTorch does where it is easy to do something else.

Run it beside the file it writes, with any recent PyTorch (made with 2.15, CPU):

    python semantics.py > semantics.json

Every entry is one call: the operation, its operands, its settings, its results. Values are numbers, or the
strings "nan", "inf" and "-inf". What C leaves undefined (a float that is too large for an integer, or NaN) is
left out: PyTorch's result depends on the processor, ours saturates.
"""

import itertools
import json
import math

import torch

NAN, INF = math.nan, math.inf
DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
entries = []


def text(tensor):
    """A tensor as JSON."""
    wide = tensor.to(torch.float64) if tensor.is_floating_point() else tensor
    values = [value if not isinstance(value, float) or math.isfinite(value) else str(value)
              for value in wide.flatten().tolist()]
    return {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "values": values}


def add(op, call, *operands, **settings):
    results = call(*operands)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    entries.append({"op": op, "in": [text(x) for x in operands], "set": settings, "out": [text(x) for x in results]})


def t(values, dtype="f32"):
    return torch.tensor(values, dtype=DTYPES[dtype])


# Casts. Halves of the last place, the largest numbers, subnormal ones.
edges = t([0.0, -0.0, 1.0, 1.00390625, 1.01171875, 1.0009765625 / 1.0, 1.00048828125, 1.00146484375, 65504.0, 65519.0,
           65520.0, 3.3895314e38, 3.4e38, 6e-8, 2.9e-8, 9.1e-41, 1e-45, INF, -INF, NAN, 0.1, -2.7], "f64")
for to in ("f32", "bf16", "f16"):
    for via in ("f64", "f32"):
        add("cast", lambda x: x.to(DTYPES[to]), edges.to(DTYPES[via]), to=to)
small = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.99, -0.99, 127.9, 3.0]
for source, to in itertools.product(("f32", "f64", "bf16", "f16"), ("i64", "i32", "bool")):
    add("cast", lambda x: x.to(DTYPES[to]), t(small, source), to=to)
add("cast", lambda x: x.to(torch.bool), t([NAN, INF, 1e-45, 0.0, -0.0]), to="bool")
whole = [0, 1, -1, 255, 256, 257, -128, 16777217, 2147483647, 2147483648, -2147483649, 9007199254740993, 2**63 - 1, -2**63]
for to in ("i32", "u8", "f32", "f64", "bf16", "f16", "bool"):
    add("cast", lambda x: x.to(DTYPES[to]), t(whole, "i64"), to=to)

# Extremes: ties, NaN, zeros with signs.
rows = [[1.0, 3.0, 3.0, 2.0], [NAN, 1.0, NAN, 5.0], [-0.0, 0.0, -0.0, 0.0], [INF, -INF, INF, -INF], [2.0, 2.0, 2.0, 2.0]]
for dtype in ("f32", "f64", "bf16"):
    for op in ("argmax", "argmin"):
        add(op, lambda x: getattr(torch, op)(x, 1), t(rows, dtype), dim=1)
        add(op, lambda x: getattr(torch, op)(x, 0), t(rows, dtype), dim=0)
        add(op, lambda x: getattr(torch, op)(x), t(rows, dtype))
for op in ("max", "min"):
    add(op, lambda x: getattr(torch, op)(x, 1), t(rows), dim=1)
    add(op, lambda x: getattr(torch, op)(x, 1), t([[3, 1, 3], [0, 0, 0]], "i64"), dim=1)
# Not the two zeros: which one PyTorch takes depends on how many elements its vectors have.
pairs = [(NAN, 1.0), (1.0, NAN), (INF, NAN), (INF, 1.0), (-INF, 1.0), (2.0, 2.0)]
left, right = [a for a, _ in pairs], [b for _, b in pairs]
for op, dtype in itertools.product(("maximum", "minimum"), ("f32", "f64", "f16")):
    add(op, getattr(torch, op), t(left, dtype), t(right, dtype))

# Quotients and remainders: all signs, zero, infinity.
some = [5.5, -5.5, 6.0, -6.0, 0.0, -0.0, INF, -INF, NAN, 0.125, 1e6]
# Quotients that are exact: PyTorch's vectorised fmod of f64 is not.
by = [2.0, -2.0, 0.0, -0.0, INF, -INF, NAN, 0.25]
grid = list(itertools.product(some, by))
for op, dtype in itertools.product(("rem", "fmod", "floor_div"), ("f32", "f64")):
    call = {"rem": torch.remainder, "fmod": torch.fmod, "floor_div": torch.floor_divide}[op]
    add(op, call, t([a for a, _ in grid], dtype), t([b for _, b in grid], dtype))
ints = list(itertools.product([7, -7, 6, -6, 0, 1, -1], [2, -2, 3, -3, 7, -7]))
for op, dtype in itertools.product(("rem", "fmod", "floor_div"), ("i64", "i32")):
    call = {"rem": torch.remainder, "fmod": torch.fmod, "floor_div": torch.floor_divide}[op]
    add(op, call, t([a for a, _ in ints], dtype), t([b for _, b in ints], dtype))
add("div", torch.div, t([7, -7, 1, 0], "i32"), t([2, 2, 0, 0], "i64"))
add("div", torch.div, t([True, False], "bool"), t([2, 2], "u8"))

# Rounding and signs.
halves = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388609.5, -0.0, 0.2, -0.2, INF, NAN]
for op, dtype in itertools.product(("round", "trunc", "floor", "ceil", "frac", "sign", "relu", "abs", "neg"), ("f32", "f64", "bf16")):
    values = [x for x in halves if not (op == "frac" and math.isinf(x))]
    add(op, getattr(torch, op), t(values, dtype))

# Powers.
bases = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, INF, -INF, NAN]
powers = [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, INF, -INF, NAN]
grid = list(itertools.product(bases, powers))
for dtype in ("f32", "f64"):
    add("pow", torch.pow, t([a for a, _ in grid], dtype), t([b for _, b in grid], dtype))
ints = list(itertools.product([0, 1, -1, 2, -3], [0, 1, 2, 3, 70]))
negative = list(itertools.product([1, -1, 2, -3], [-1, -2, -3]))
for dtype in ("i64", "i32"):
    add("pow", torch.pow, t([a for a, _ in ints + negative], dtype), t([b for _, b in ints + negative], dtype))
for exponent in (2.0, 3.0, 0.5, -0.5, -1.0, 0.0, 1.0):
    values = [x for x in bases if not (exponent in (0.5, -0.5) and x in (-INF,))]
    add("pow_scalar", lambda x: torch.pow(x, exponent), t(values, "f64"), exponent=exponent)
specials = [(0.0, 0.0), (0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0), (INF, INF), (INF, -INF), (-INF, INF), (-INF, -INF),
            (1.0, INF), (1.0, -INF), (INF, 1.0), (NAN, 1.0), (1.0, NAN), (0.0, -1.0), (-0.0, -1.0), (-1.0, 0.0)]
for op in ("atan2", "hypot", "logaddexp", "copysign"):
    add(op, getattr(torch, op), t([a for a, _ in specials], "f64"), t([b for _, b in specials], "f64"))
    add(op, getattr(torch, op), t([a for a, _ in specials]), t([b for _, b in specials]))

# Running operations with NaN and ties.
run = [[1.0, 3.0, 3.0, NAN, 2.0], [-1.0, INF, -INF, 0.0, 1.0], [2.0, 1.0, 2.0, 1.0, 2.0]]
for op in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"):
    add(op, lambda x: getattr(torch, op)(x, 1), t(run, "f64"), dim=1)
    add(op, lambda x: getattr(torch, op)(x, 0), t(run, "f64"), dim=0)
for op in ("cumsum", "cumprod"):
    add(op, lambda x: getattr(torch, op)(x, 0), t([200, 100, 3], "u8"), dim=0)
    add(op, lambda x: getattr(torch, op)(x, 0), t([True, True, False], "bool"), dim=0)

# Order.
order = [3.0, NAN, 1.0, -0.0, 0.0, NAN, 1.0, INF, -INF, 3.0]
for descending, dtype in itertools.product((False, True), ("f32", "f64", "f16")):
    add("sort", lambda x: torch.sort(x, dim=0, descending=descending, stable=True), t(order, dtype), dim=0, descending=descending)
for descending in (False, True):
    add("sort", lambda x: torch.sort(x, dim=1, descending=descending, stable=True), t([[3, 1, 3, 1], [0, 0, 5, -5]], "i64"), dim=1, descending=descending)
    add("sort", lambda x: torch.sort(x, dim=0, descending=descending, stable=True), t([True, False, True, False], "bool"), dim=0, descending=descending)
for values in ([4.0, 1.0, 3.0, 2.0], [5.0, 1.0, 3.0], [1.0, NAN, 2.0], [7.0]):
    add("median", lambda x: torch.median(x, 0), t(values), dim=0)
add("kthvalue", lambda x: torch.kthvalue(x, 2, 0), t([4.0, 1.0, 3.0, 2.0]), k=2, dim=0)
for values, correction in itertools.product(([5.0], [1.0, 2.0], [1.0, NAN, 3.0], [1.0, 2.0, 4.0]), (0.0, 1.0)):
    add("std", lambda x: torch.std(x, 0, correction=correction), t(values, "f64"), dim=0, correction=correction)
    add("var", lambda x: torch.var(x, 0, correction=correction), t(values, "f64"), dim=0, correction=correction)
q = [0.0, 0.1, 0.25, 0.5, 0.7, 1.0]
for how in ("linear", "lower", "higher", "nearest", "midpoint"):
    # No infinities: PyTorch takes their difference even where the place is that of one value.
    for values in ([3.0, 1.0, 2.0, 10.0, 4.0], [1.0, 2.0], [5.0], [1.0, NAN, 2.0]):
        add("quantile", lambda x: torch.quantile(x, t(q, "f64"), 0, interpolation=how), t(values, "f64"), q=q, dim=0, how=how)
    add("nanquantile", lambda x: torch.nanquantile(x, t(q, "f64"), 1, interpolation=how),
        t([[1.0, NAN, 2.0, 5.0], [NAN, NAN, NAN, NAN], [4.0, 3.0, 2.0, 1.0]], "f64"), q=q, dim=1, how=how)

# Counting and searching.
counted = [0.0, 0.25, 0.5, 0.75, 1.0, -0.1, 1.1, 0.999999, 0.333333333]
for bins, low, high in ((4, 0.0, 1.0), (3, 0.0, 1.0), (4, 0.0, 0.0), (1, 0.0, 1.0)):
    for dtype in ("f32", "f64"):
        add("histc", lambda x: torch.histc(x, bins, low, high), t(counted, dtype), bins=bins, min=low, max=high)
add("histc", lambda x: torch.histc(x, 3), t([2.0, 2.0]), bins=3, min=0.0, max=0.0)
add("histc", lambda x: torch.histc(x, 3, 0, 3), t([NAN, 1.0, INF]), bins=3, min=0.0, max=3.0)
add("histogram", lambda x: torch.histogram(x, 4, range=(0.0, 1.0)), t(counted, "f64"), bins=4, min=0.0, max=1.0)
add("histogram_of_edges", lambda x, e: torch.histogram(x, e)[0], t(counted, "f64"), t([0.0, 0.25, 0.8, 1.0], "f64"))
add("bincount", lambda x: torch.bincount(x), t([3, 0, 3, 1], "i64"), min_length=0)
add("bincount", lambda x: torch.bincount(x, minlength=6), t([3, 0, 3, 1], "i32"), min_length=6)
add("bincount", lambda x: torch.bincount(x, minlength=2), t([], "i64"), min_length=2)
for dtype in ("f32", "f64", "i64", "bf16"):
    add("bincount", lambda x, w: torch.bincount(x, w), t([1, 0, 1], "u8"), t([2, 3, 4], dtype), min_length=0)
for right in (False, True):
    add("searchsorted", lambda s, v: torch.searchsorted(s, v, right=right), t([1.0, 3.0, 3.0, 5.0]), t([[0.0, 1.0, 3.0], [4.0, 5.0, NAN]]), right=right)
    add("searchsorted", lambda s, v: torch.searchsorted(s, v, right=right), t([[1, 3, 5], [2, 2, 2]], "i64"), t([[3, 6], [2, 0]], "i64"), right=right)
    add("searchsorted", lambda s, v: torch.searchsorted(s, v, right=right), t([-0.0, 0.0], "f64"), t([0.0, -0.0, INF, -INF], "f64"), right=right)
    add("bucketize", lambda v, s: torch.bucketize(v, s, right=right), t([[0, 3], [9, 1]], "i32"), t([1, 3, 5], "i32"), right=right)
unique = {"return_inverse": True, "return_counts": True}
add("unique", lambda x: torch.unique(x, **unique), t([[3, 1, 3], [2, 1, 0]], "i64"))
add("unique", lambda x: torch.unique(x, **unique), t([NAN, 1.0, NAN, 0.0, -0.0]))
add("unique_consecutive", lambda x: torch.unique_consecutive(x, **unique), t([1, 1, 2, 2, 1, 3], "i32"))
add("unique_dim", lambda x: torch.unique(x, dim=0, **unique), t([[3, 1], [2, 9], [3, 1], [2, 0]], "i64"), dim=0)
add("unique_dim", lambda x: torch.unique(x, dim=1, **unique), t([[3, 1, 3], [2, 9, 2]], "i64"), dim=1)
add("isin", torch.isin, t([1, 2, 3, 9], "i64"), t([9, 1], "i64"))
near = [(1.0, 1.0), (1.0, 1.00001), (1.0, 1.0001), (INF, INF), (INF, -INF), (INF, 1.0), (NAN, NAN), (NAN, 1.0), (0.0, 1e-9), (0.0, 1e-7)]
for equal_nan, dtype in itertools.product((False, True), ("f32", "f64")):
    add("isclose", lambda a, b: torch.isclose(a, b, equal_nan=equal_nan), t([a for a, _ in near], dtype), t([b for _, b in near], dtype),
        relative=1e-5, absolute=1e-8, equal_nan=equal_nan)
add("isclose", lambda a, b: torch.isclose(a, b, rtol=0.1, atol=0.0), t([100, 100, 100], "i64"), t([110, 112, 90], "i64"), relative=0.1, absolute=0.0, equal_nan=False)
clamped = [-1.0, 0.5, 2.0, NAN, INF]
add("clamp", lambda x: torch.clamp(x, 0.0, 1.0), t(clamped), min=0.0, max=1.0)
add("clamp", lambda x: torch.clamp(x, 1.0, 0.0), t(clamped), min=1.0, max=0.0)
for dtype in ("f32", "f64", "bf16", "f16"):
    add("nan_to_num", torch.nan_to_num, t([NAN, INF, -INF, 1.5], dtype))

# Promotion: two tensors with dims; one with and one without; a tensor and a number.
for a, b in itertools.product(DTYPES, DTYPES):
    one, two, none = t([1], a), t([1], b), t(1, b)
    add("promote", lambda x, y: torch.zeros(0, dtype=torch.result_type(x, y)), one, two)
    add("promote", lambda x, y: torch.zeros(0, dtype=torch.result_type(x, y)), one, none)
for a, number in itertools.product(DTYPES, (True, 1, 1.5)):
    add("promote_scalar", lambda x: torch.zeros(0, dtype=torch.result_type(x, number)), t([1], a), number=number)
    add("promote_scalar", lambda x: torch.zeros(0, dtype=torch.result_type(x, number)), t(1, a), number=number)

print("[\n" + ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries) + "\n]")
