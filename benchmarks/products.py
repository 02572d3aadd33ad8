"""GFLOP/s of the matrix products of an update, by what computes them, on one thread.

    python benchmarks/products.py [--rounds 7] [--seconds 0.02] [--write]

The products are those of a layer: forward, the gradient of its input, and the gradient of its weight. float32 products
are MKL's, as torch chooses, oneDNN's, and loops of compiled graphs, which take their place on AMD processors with
AVX-512 (algorithms/loops). Those of tensors in bfloat16 are oneDNN's. Variants take turns within a round, in one
process, and the time is that on the core. A call makes several products with different factors, for in an update they
are not in the nearest cache either; a graph also copies transposed weights, as it does in an update. Sizes are rows x
inputs x outputs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from interleaving import Report, make_parser, table
from torch import Tensor

from rl_training.compilation import CompiledGradient
from rl_training.compilation.kernels import are_faster

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
VARIANTS = ("MKL", "oneDNN", *(["loops"] if are_faster() else []), "bfloat16")
WARM_UP = 3
FACTORS = 4
"""How many products a call makes, each with factors of its own."""
ABOUT = """\
Median over rounds, time on the core, one thread. *MKL*, *oneDNN* and *loops* of compiled graphs are in float32. The
last column is the median of the speed of loops by MKL's in the same round."""
Factors = dict[str, Tensor]
Product = Callable[..., Tensor]


def multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product as torch computes it."""
    return torch.mm(left, right) if bias is None else torch.addmm(bias, left, right)


def multiply_by_onednn(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product in float32 as oneDNN computes it."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")
    return product


def forward(product: Product, factors: Factors) -> list[Tensor]:
    """The outputs of a layer."""
    numbers = range(FACTORS)
    return [product(factors[f"inputs{n}"], factors[f"weight{n}"], factors[f"bias{n}"]) for n in numbers]


def input_gradient(product: Product, factors: Factors) -> list[Tensor]:
    """The gradient of its inputs."""
    return [product(factors[f"gradient{n}"], factors[f"weight{n}"].t()) for n in range(FACTORS)]


def weight_gradient(product: Product, factors: Factors) -> list[Tensor]:
    """The gradient of its weight."""
    return [product(factors[f"inputs{n}"].t(), factors[f"gradient{n}"]) for n in range(FACTORS)]


def products(size: tuple[int, int, int], variant: str) -> dict[str, Callable[[], list[Tensor]]]:
    """The three products of a layer, by name."""
    rows, fan_in, fan_out = size
    made = partial(torch.randn, dtype=torch.bfloat16 if variant == "bfloat16" else torch.float32)
    shapes = {"inputs": (rows, fan_in), "weight": (fan_in, fan_out), "gradient": (rows, fan_out), "bias": (fan_out,)}
    factors = {f"{name}{number}": made(shape) for name, shape in shapes.items() for number in range(FACTORS)}
    product = multiply_by_onednn if variant == "oneDNN" else multiply
    found: dict[str, Callable[[], list[Tensor]]] = {}
    for function in (forward, input_gradient, weight_gradient):
        name = function.__name__
        call: Callable[[Factors], list[Tensor]] = partial(function, product)
        if variant == "loops":
            call = CompiledGradient(function, product, name=name, backend="inductor")
        found[name.replace("_", " ")] = partial(call, factors)
    return found


def seconds(product: Callable[[], list[Tensor]], count: int) -> float:
    """The time of one call on the core."""
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
        count = max(1, int(wanted / seconds(reference, 1)))
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
        work = 2 * FACTORS * size[0] * size[1] * size[2] / 1e9
        for name, times in measure(size, args.rounds, args.seconds).items():
            speeds = [f"{work / statistics.median(times[variant]):.1f}" for variant in VARIANTS]
            ours = times.get("loops", times["MKL"])
            gain = statistics.median(a / b for a, b in zip(times["MKL"], ours, strict=True))
            rows.append(["x".join(map(str, size)), name, *speeds, f"{gain:.2f}"])
    report.add(table(["Size", "Product", *(f"{name}, GFLOP/s" for name in VARIANTS), "loops by MKL"], rows))
    report.finish()


if __name__ == "__main__":
    main()
