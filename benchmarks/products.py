"""GFLOP/s of the matrix products of an update, by the library that computes them, on one thread.

    python benchmarks/products.py [--rounds 7] [--seconds 0.02] [--write]

The products are those of a layer: forward, the gradient of its input, and the gradient of its weight. float32 products
are MKL's, as torch chooses; oneDNN's, which torch takes instead where float32 products may be rounded to bfloat16
(`torch.backends.mkldnn.matmul.fp32_precision`; on a processor without AMX they are not rounded all the same, which is
checked here); and those of tensors in bfloat16, which are oneDNN's. Variants take turns within a round, in one process,
and the time is that on the core. Sizes are rows x inputs x outputs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

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
ABOUT = """\
Median over rounds, time on the core, one thread. *oneDNN* are its float32 products. The last column is the median of
their speed by MKL's in the same round."""


def products(rows: int, fan_in: int, fan_out: int, dtype: torch.dtype) -> dict[str, Callable[[], Tensor]]:
    """The three products of a layer, by name."""
    inputs, weight = torch.randn(rows, fan_in, dtype=dtype), torch.randn(fan_in, fan_out, dtype=dtype)
    bias, gradient = torch.randn(fan_out, dtype=dtype), torch.randn(rows, fan_out, dtype=dtype)
    return {
        "forward": lambda: torch.addmm(bias, inputs, weight),
        "input gradient": lambda: torch.mm(gradient, weight.t()),
        "weight gradient": lambda: torch.mm(inputs.t(), gradient),
    }


def choose(variant: str) -> None:
    """Have float32 products computed by this library."""
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if variant == "oneDNN" else "ieee"  # type: ignore[attr-defined]


def refuse_rounded() -> None:
    """End with an error where oneDNN's float32 products are rounded, as they are with AMX."""
    one, other = torch.randn(256, 256), torch.randn(256, 256)
    choose("oneDNN")
    error = (one @ other - (one.double() @ other.double())).abs().max().item()
    choose("MKL")
    if error > 1e-3:
        raise SystemExit("oneDNN rounds float32 products on this processor: they cannot be compared")


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
    made = {dtype: products(*size, dtype) for dtype in (torch.float32, torch.bfloat16)}
    found: dict[str, dict[str, list[float]]] = {}
    for name in made[torch.float32]:
        times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        count = max(3, int(wanted / seconds(made[torch.float32][name], 3)))
        for _ in range(rounds):
            for variant in VARIANTS:
                choose(variant)
                dtype = torch.bfloat16 if variant == "bfloat16" else torch.float32
                times[variant].append(seconds(made[dtype][name], count))
        found[name] = times
    choose("MKL")
    return found


def main() -> None:
    """Print a table of speeds."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=0.02, help="of one product in a round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    refuse_rounded()
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
