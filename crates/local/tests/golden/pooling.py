"""Writes pooling.json: what PyTorch makes of awkward pooling windows.

    python pooling.py > pooling.json

Made with PyTorch 2.15. NaN and -inf are written as strings.
"""

import itertools
import json
import math

import torch
import torch.nn.functional as F

NAN = math.nan


def numbers(tensor):
    def number(x):
        return x if math.isfinite(x) else str(x)

    return [number(x) for x in tensor.flatten().tolist()]


def case(op, x, settings, y, indices=None):
    record = {"op": op, "shape": list(x.shape), "x": numbers(x), **settings, "out": list(y.shape), "y": numbers(y)}
    if indices is not None:
        record["indices"] = indices.flatten().tolist()
    return record


def values(*shape):
    n = math.prod(shape)
    # A permutation of small whole numbers: sums are exact, and the largest is never first or last by chance.
    return ((torch.arange(n, dtype=torch.float64) * 7 + 3) % max(n, 1) % 11 - 5).reshape(shape)


def main():
    cases = []
    one_dim = [(i, k, s, p, d, c) for i, k, s, p, d, c in itertools.product(
        (1, 4, 5, 7), (1, 2, 3), (1, 2, 3), (0, 1), (1, 2), (False, True)) if 2 * p <= k and i + 2 * p >= d * (k - 1) + 1]
    # Every third is enough to meet every edge.
    for size, kernel, stride, padding, dilation, ceil_mode in one_dim[::3]:
        x = values(1, 2, size)
        settings = dict(kernel=[kernel], stride=[stride], padding=[padding], dilation=[dilation], ceil_mode=ceil_mode)
        y, indices = F.max_pool1d(x, kernel, stride, padding, dilation, ceil_mode, return_indices=True)
        if torch.isfinite(y).all():  # A window of padding alone has an index out of range in PyTorch.
            cases.append(case("max_pool", x, settings, y, indices))
        if dilation == 1:
            for include in (False, True):
                y = F.avg_pool1d(x, kernel, stride, padding, ceil_mode, include)
                cases.append(case("avg_pool", x, {**settings, "count_include_pad": include}, y))
    for ceil_mode in (False, True):
        x = values(2, 1, 5, 6)
        settings = dict(kernel=[3, 2], stride=[2, 3], padding=[1, 1], dilation=[1, 2], ceil_mode=ceil_mode)
        y, indices = F.max_pool2d(x, (3, 2), (2, 3), (1, 1), (1, 2), ceil_mode, return_indices=True)
        cases.append(case("max_pool", x, settings, y, indices))
        settings = dict(kernel=[3, 2], stride=[2, 3], padding=[1, 1], dilation=[1], ceil_mode=ceil_mode)
        for include, divisor in ((False, None), (True, None), (True, 7)):
            y = F.avg_pool2d(x, (3, 2), (2, 3), (1, 1), ceil_mode, include, divisor)
            cases.append(case("avg_pool", x, {**settings, "count_include_pad": include, "divisor_override": divisor}, y))
        x = values(1, 1, 3, 4, 5)
        settings = dict(kernel=[2, 3, 2], stride=[2], padding=[1], dilation=[1], ceil_mode=ceil_mode)
        y, indices = F.max_pool3d(x, (2, 3, 2), 2, 1, 1, ceil_mode, return_indices=True)
        cases.append(case("max_pool", x, settings, y, indices))
        for include in (False, True):
            y = F.avg_pool3d(x, (2, 3, 2), 2, 1, ceil_mode, include)
            cases.append(case("avg_pool", x, {**settings, "count_include_pad": include}, y))
    # NaN is the largest, the last one of several; of equals it is the first; -inf alone is the first element.
    plain = dict(stride=[], padding=[0], dilation=[1], ceil_mode=False)
    for x in ([1.0, NAN, 2.0, NAN, 0.0, 3.0], [2.0, 2.0, 2.0, 2.0, 1.0, 1.0], [-math.inf] * 6):
        x = torch.tensor(x, dtype=torch.float64).reshape(1, 1, 6)
        for kernel in (2, 3, 6):
            y, indices = F.max_pool1d(x, kernel, return_indices=True)
            cases.append(case("max_pool", x, {"kernel": [kernel], **plain}, y, indices))
    for input_size, output_size in itertools.product(((5,), (7, 4), (3, 5, 2)), ((1,), (3,), (4,))):
        x, n = values(1, 2, *input_size), len(input_size)
        y, indices = getattr(F, f"adaptive_max_pool{n}d")(x, output_size * n, return_indices=True)
        cases.append(case("adaptive_max_pool", x, {"size": list(output_size)}, y, indices))
        y = getattr(F, f"adaptive_avg_pool{n}d")(x, output_size * n)
        cases.append(case("adaptive_avg_pool", x, {"size": list(output_size)}, y))
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")


main()
