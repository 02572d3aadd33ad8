"""GFLOP/s of the matrix products of an update, by the library that computes them, on one thread.

    python benchmarks/products.py [--rounds 7] [--seconds 0.02] [--write]

The products are those of a layer: forward, the gradient of its input, and the gradient of its weight. float32 products
are MKL's, as torch chooses, and oneDNN's, as compiled graphs call them on AMD processors (algorithms/onednn.py);
those of tensors in bfloat16 are always oneDNN's. Variants take turns within a round, in one process, and the time is
that on the core. Each product has several factors in turn, for in an update they are not in the nearest cache either.
Sizes are rows x inputs x outputs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch
from interleaving import Report, make_parser, table
from torch import Tensor

SIZES = (
    (1, 256, 256),
    (256, 23, 256),
    (256, 256, 256),
    (256, 256, 1),
    (100, 400, 300),
    (1000, 400, 300),
    (256, 750, 750),
    (1024, 256, 256),
    (7936, 23, 256),
    (7936, 256, 256),
    (7936, 256, 1),
)
VARIANTS = ("MKL", "oneDNN", "bfloat16")
WARM_UP = 3
FACTORS = 4
"""How many factors a product has in turn."""
ABOUT = """\
Median over rounds, time on the core, one thread. *oneDNN* are its float32 products. The last column is the median of
their speed by MKL's in the same round. Compiled graphs take oneDNN from 8.4 million multiplications on, but for
gradients of weights, whose first factor it copies."""


def products(size: tuple[int, int, int], variant: str) -> dict[str, Callable[[], Tensor]]:
    """The three products of a layer, by name."""
    rows, fan_in, fan_out = size
    dtype = torch.bfloat16 if variant == "bfloat16" else torch.float32
    made = partial(torch.randn, dtype=dtype)
    bias = made(fan_out)
    turns = cycle([(made(rows, fan_in), made(fan_in, fan_out), made(rows, fan_out)) for _ in range(FACTORS)])
    linear = torch.ops.mkldnn._linear_pointwise

    def multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        if variant == "oneDNN":
            product: Tensor = linear(left, right.t(), bias, "none", [], "")
            return product
        return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)

    def forward() -> Tensor:
        inputs, weight, _ = next(turns)
        return multiply(inputs, weight, bias)

    def input_gradient() -> Tensor:
        _, weight, gradient = next(turns)
        return multiply(gradient, weight.t())

    def weight_gradient() -> Tensor:
        inputs, _, gradient = next(turns)
        return multiply(inputs.t(), gradient)

    return {"forward": forward, "input gradient": input_gradient, "weight gradient": weight_gradient}


def seconds(product: Callable[[], Tensor], count: int) -> float:
    """The time of one product on the core."""
    for _ in range(WARM_UP):
        product()
    start = time.process_time()
    for _ in range(count):
        product()
    return (time.process_time() - start) / count


def measure(size: tuple[int, int, int], rounds: int, wanted: float) -> dict[str, dict[str, list[float]]]:
    """By product and variant, its time in every round."""
    made = {variant: products(size, variant) for variant in VARIANTS}
    found: dict[str, dict[str, list[float]]] = {}
    for name, reference in made["MKL"].items():
        count = max(FACTORS, int(wanted / seconds(reference, FACTORS)))
        found[name] = {variant: [] for variant in VARIANTS}
        for _ in range(rounds):
            for variant in VARIANTS:
                found[name][variant].append(seconds(made[variant][name], count))
    return found


def main() -> None:
    """Print a table of speeds."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=0.02, help="of one product in a round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report = Report("Matrix products of an update", ABOUT, args)
    rows = []
    for size in SIZES:
        work = 2 * size[0] * size[1] * size[2] / 1e9
        for name, times in measure(size, args.rounds, args.seconds).items():
            speeds = [f"{work / statistics.median(times[variant]):.1f}" for variant in VARIANTS]
            gain = statistics.median(a / b for a, b in zip(times["MKL"], times["oneDNN"], strict=True))
            rows.append(["x".join(map(str, size)), name, *speeds, f"{gain:.2f}"])
    report.add(table(["Size", "Product", *(f"{name}, GFLOP/s" for name in VARIANTS), "oneDNN by MKL"], rows))
    report.finish()


if __name__ == "__main__":
    main()
