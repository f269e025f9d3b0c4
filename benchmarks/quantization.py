"""Products of a step with quantized weights beside ours in bfloat16: times, bytes and errors.

    python -m benchmarks.quantization [--rows 1,8,32,512] [--rounds 9] [--kinds ours,int4/128,...]
                                      [--threads 2] [--errors]
    pip install --target DIR --no-deps torchao openvino openvino_telemetry
    pip install --target DIR --no-deps onnxruntime onnx ml_dtypes flatbuffers protobuf
    PYTHONPATH=DIR python -m benchmarks.quantization

The products are the 97 of a Qwen2 of 387 million parameters (its gate and up as one), each layer
with weights of its own, in the order of a step, in huge pages where the system gives them. The
runtimes that take whole graphs, and what is compiled, place their own copies where they like.

`int8` and `int4/G` (groups of G inputs) are torch's operators; torchao calls that of int4.
`compiled` has torch.compile choose among them and its own AMX templates (max-autotune, which needs
a C++ compiler).
`torchao int8` is what it does without compiling: it converts the weight in each call. `onnx` is
MatMulNBits of onnxruntime, `openvino` a product with weights to decompress; both are given and give
float32, both may round the activations to int8 too, and their weights are random.

Contenders take turns, each after a pause that sees the others' threads asleep and a step that is
not counted; the median counts. From 64 rows on, `FEW` layers are measured and counted 24-fold.
`others` is the share of the cores that other processes took meanwhile: with more than a few
percent, measure again.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from engine.builtin import MODEL_DIR
from engine.native import kernels

if TYPE_CHECKING:
    from torch import Tensor

LAYERS, FEW, MANY_ROWS = 24, 2, 64
# Output and input features of a layer's products, in order, and of the head.
LAYER = ((1152, 896), (896, 896), (9728, 896), (896, 4864))
HEAD = (32_000, 896)
GROUPS = (32, 64, 128)
PAUSE_SECONDS = 0.01
COMPILED = " compiled"
AUTOTUNE: dict[str, Any] = {
    "max_autotune": True,
    "freezing": True,
    "max_autotune_gemm_backends": "CPP,ATEN",
}

Product = Callable[["Tensor"], object]
Shapes = tuple[tuple[int, int], ...]
Step = Callable[[dict[int, "Tensor"]], object]


def weight_bytes(bits: int, group: int | None, scale_bytes: int) -> int:
    """Bytes of weights and scales that a step reads; `group` None: a scale an output."""
    shapes = [*LAYER * LAYERS, HEAD]
    return sum(
        n * k * bits // 8 + n * (k // group if group else 1) * scale_bytes for n, k in shapes
    )


def round_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [n, k] and bfloat16 scales [n]: symmetric, by output."""
    import torch

    scale = (weight.float().abs().amax(1) / 127).clamp(min=1e-8).bfloat16()
    return (weight.float() / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def round_int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Numbers from 0 to 15, int32 [n, k]; scale and middle, bfloat16 [k / group, n, 2]."""
    import torch

    n, k = weight.shape
    grouped = weight.float().view(n, k // group, group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale = ((high - low) / 15).clamp(min=1e-8).bfloat16()
    middle = (low + 8 * scale.float()).bfloat16()
    numbers = (grouped - middle.float()[..., None]) / scale.float()[..., None] + 8
    both = torch.stack((scale, middle), -1).transpose(0, 1).contiguous()
    return numbers.round().clamp(0, 15).int().view(n, k), both


def huge(tensor: Tensor) -> Tensor:
    """A copy in huge pages, where the system gives them."""
    import torch

    native = kernels()
    assert native is not None
    copy = torch.empty_like(tensor)
    native.advise_huge(copy)
    return copy.copy_(tensor)


def fitting(group: int, k: int) -> int:
    """The group, halved until it divides the inputs."""
    while k % group:
        group //= 2
    return group


def keep(kind: str, weight: Tensor) -> tuple[Tensor, ...]:
    """A weight [n, k] in bfloat16 as `kind` keeps it."""
    import torch

    n, k = weight.shape
    if kind == "ours":
        native = kernels()
        assert native is not None
        packed = torch.empty(native.packed_size(n, k), dtype=torch.bfloat16)
        native.pack_linear(weight, packed)
        return (packed,)
    if kind == "int8":
        return round_int8(weight)
    if kind.startswith("int4"):
        numbers, both = round_int4(weight, fitting(int(kind.partition("/")[2]), k))
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1), both
    return (weight,)


def make_product(kind: str, n: int, k: int, kept: tuple[Tensor, ...]) -> Product:
    """x -> x @ weight.T, with the weight as `keep` gave it."""
    import torch

    if kind == "ours":
        native = kernels()
        assert native is not None
        outs: dict[int, Tensor] = {}

        def ours(x: Tensor) -> Tensor:
            out = outs.get(len(x))
            if out is None:
                out = outs[len(x)] = torch.empty(len(x), n, dtype=torch.bfloat16)
            native.linear(out, x, kept[0], n, k)
            return out

        return ours
    if kind == "int8":
        return lambda x: torch._weight_int8pack_mm(x, *kept)
    if kind == "torchao int8":
        ao: Any = importlib.import_module("torchao.quantization")
        linear = torch.nn.Linear(k, n, bias=False, dtype=torch.bfloat16)
        linear.weight.data = kept[0]
        ao.quantize_(linear, ao.Int8WeightOnlyConfig())
        return linear
    if kind.startswith("int4"):
        group = fitting(int(kind.partition("/")[2]), k)
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
        return lambda x: multiply(x, kept[0], group, kept[1])
    return lambda x: torch.nn.functional.linear(x, kept[0])


def compiled(kind: str, shapes: Shapes, kept: dict[Any, tuple[Tensor, ...]]) -> Step:
    """One graph with all products; only what a module holds counts as constant in it."""
    import torch

    class Products(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i, shape in enumerate(shapes):
                for j, tensor in enumerate(kept[shape]):
                    self.register_buffer(f"t{i}_{j}", huge(tensor))

        def forward(self, x: dict[int, Tensor]) -> list[object]:
            held = [
                (getattr(self, f"t{i}_0"), getattr(self, f"t{i}_1")) for i in range(len(shapes))
            ]
            both = zip(shapes, held, strict=True)
            return [make_product(kind, n, k, h)(x[k]) for (n, k), h in both]

    # Given as `options` of compile, nothing was autotuned (torch 2.13), in silence. What is chosen
    # depends on how quiet the machine is: look at the kernels that autotuning prints.
    inductor: Any = importlib.import_module("torch._inductor.config")
    for name, value in AUTOTUNE.items():
        setattr(inductor, name, value)
    step: Step = torch.compile(Products().eval(), dynamic=False)
    return step


def make_step(kind: str, weights: dict[tuple[int, int], Tensor], shapes: Shapes) -> Step:
    """The products of these shapes, each with a copy of its weight."""
    maker, _, setting = kind.partition(" ")
    if maker == "onnx":
        return onnx_step(shapes, int(setting.partition("/")[2]))
    if maker == "openvino":
        return openvino_step(shapes, setting)
    base = kind.removesuffix(COMPILED)
    kept = {shape: keep(base, weights[shape]) for shape in set(shapes)}
    if kind != base:
        return compiled(base, shapes, kept)
    products = [(make_product(kind, n, k, tuple(map(huge, kept[n, k]))), k) for n, k in shapes]

    def run(x: dict[int, Tensor]) -> None:
        for product, k in products:
            product(x[k])

    return run


def onnx_step(shapes: Shapes, group: int) -> Step:
    """One session with all products; the numbers are random, as their values cost nothing."""
    import numpy as np
    import torch

    onnx: Any = importlib.import_module("onnx")
    runtime: Any = importlib.import_module("onnxruntime")
    make, real = onnx.helper, onnx.TensorProto.FLOAT
    random = np.random.default_rng(0)
    held, nodes, outs = [], [], []
    for i, (n, k) in enumerate(shapes):
        size = (n, k // group, group // 2)
        numbers = random.integers(0, 256, size, dtype=np.uint8)
        held.append(onnx.numpy_helper.from_array(numbers, f"w{i}"))
        scale = np.full(n * k // group, 0.01, np.float32)
        held.append(onnx.numpy_helper.from_array(scale, f"s{i}"))
        nodes.append(
            make.make_node(
                "MatMulNBits",
                [f"x{k}", f"w{i}", f"s{i}"],
                [f"y{i}"],
                domain="com.microsoft",
                K=k,
                N=n,
                bits=4,
                block_size=group,
                accuracy_level=4,
            )
        )
        outs.append(make.make_tensor_value_info(f"y{i}", real, ["rows", n]))
    widths = sorted({k for _, k in shapes})
    ins = [make.make_tensor_value_info(f"x{k}", real, ["rows", k]) for k in widths]
    domains = [make.make_opsetid("", 17), make.make_opsetid("com.microsoft", 1)]
    graph = make.make_graph(nodes, "products", ins, outs, held)
    model = make.make_model(graph, opset_imports=domains, ir_version=9)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Else its threads spin on, through the others' turns.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda x: session.run(None, {f"x{k}": x[k].float().numpy() for k in widths})


def openvino_step(shapes: Shapes, setting: str) -> Step:
    """One model with all products, int8 by output or int4 in groups; the numbers are random."""
    import numpy as np
    import torch

    ov: Any = importlib.import_module("openvino")
    op: Any = importlib.import_module("openvino.opset13")
    random = np.random.default_rng(0)
    xs = {k: op.parameter([-1, k], ov.Type.f32) for k in sorted({k for _, k in shapes})}
    outs = []
    for n, k in shapes:
        if setting == "int8":
            numbers = op.constant(random.integers(-127, 128, (n, k), dtype=np.int8))
            scales: tuple[int, ...] = (n, 1)
            real = op.convert(numbers, "f32")
        else:
            group = fitting(int(setting.partition("/")[2]), k)
            held = random.integers(0, 256, n * k // 2, dtype=np.uint8)
            four = ov.Tensor(held, ov.Shape([n, k // group, group]), ov.Type.u4)
            scales = (n, k // group, 1)
            middle = op.constant(np.full(scales, 8, np.float32))
            real = op.subtract(op.convert(op.constant(four), "f32"), middle)
        weight = op.multiply(real, op.constant(np.full(scales, 0.01, np.float32)))
        weight = op.reshape(weight, op.constant(np.array([n, k])), False)
        outs.append(op.matmul(xs[k], weight, False, True))
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = (
        ov.Core()
        .compile_model(ov.Model(outs, list(xs.values())), "CPU", settings)
        .create_infer_request()
    )
    return lambda x: request.infer(
        [x[k].float().numpy() for k in xs], share_inputs=True, share_outputs=True
    )


def seconds(work: Step, x: dict[int, Tensor]) -> float:
    start = time.perf_counter()
    work(x)
    return time.perf_counter() - start


def whole(layers: float, head: float, measured: int) -> float:
    """Seconds of a step, of those of `measured` layers and of the head."""
    return layers * LAYERS / measured + head


def installed(kind: str) -> bool:
    module = {"onnx": "onnxruntime", "torchao": "torchao", "openvino": "openvino"}
    return importlib.util.find_spec(module.get(kind.split()[0], "torch")) is not None


def taken_by_others(busy: float, own: float, wall: float, cores: int) -> float:
    """The share of the cores' time; seconds of all processes, of this one, and of the clock."""
    return max(0.0, busy - own) / (wall * cores)


def cpu_seconds() -> tuple[float, float, float]:
    """So far: busy seconds of all cores, those of this process, and the clock."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return sum(times[:8]) - idle, time.process_time(), time.perf_counter()


def measure(
    kinds: list[str], weights: Any, rows: int, rounds: int
) -> tuple[dict[str, float], float]:
    """Median seconds of a step's products, and the share of the cores that others took."""
    import torch

    layers = FEW if rows >= MANY_ROWS else LAYERS
    x = {k: torch.randn(rows, k, dtype=torch.bfloat16) for k in (896, 4864)}
    steps = {
        kind: (make_step(kind, weights, LAYER * layers), make_step(kind, weights, (HEAD,)))
        for kind in kinds
    }
    for body, head in steps.values():  # what compiles does so in its first call
        body(x)
        head(x)
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    before = cpu_seconds()
    for _ in range(rounds):
        for kind, (body, head) in steps.items():
            time.sleep(PAUSE_SECONDS)
            body(x)
            times = seconds(body, x), seconds(head, x)
            taken[kind].append(whole(*times, layers))
    passed = [b - a for a, b in zip(before, cpu_seconds(), strict=True)]
    others = taken_by_others(passed[0], passed[1], passed[2], os.cpu_count() or 1)
    return {kind: median(times) for kind, times in taken.items()}, others


def calling(rounds: int = 200) -> dict[str, float]:
    """Seconds for 97 products of next to nothing, a call of each from Python; and of handing over.

    Handing over: 97 times a native RMSNorm and an int4 product of 896 -> 1152 in turn, less both
    apart; each side's threads still spin when the other's begin."""
    import torch

    native = kernels()
    assert native is not None
    x, out = (torch.randn(1, 896).bfloat16() for _ in range(2))
    tiny, real = (
        make_product("int4/32", n, k, keep("int4/32", torch.randn(n, k).bfloat16()))
        for n, k in ((64, 64), (1152, 896))
    )
    narrow = x[:, :64].contiguous()

    def timed(*calls: Callable[[], object]) -> float:
        times = []
        for _ in range(rounds):
            time.sleep(PAUSE_SECONDS)
            for counted in (False, True):
                start = time.perf_counter()
                for _ in range(97):
                    for call in calls:
                        call()
                if counted:
                    times.append(time.perf_counter() - start)
        return median(times)

    def norm() -> None:
        native.norm(out, x)

    def product() -> object:
        return real(x)

    apart = timed(norm) + timed(product)
    return {
        "97 calls of a torch product": timed(lambda: tiny(narrow)),
        "97 hand-overs between the threads": timed(norm, product) - apart,
    }


def relative(found: Tensor, true: Tensor) -> float:
    """Norm of the difference over the norm of what is true."""
    return float((found.float() - true).norm() / true.norm())


def compare(found: Tensor, true: Tensor) -> tuple[float, float]:
    """Mean KL(true || found) in nats, and the share of equal argmax; logits [positions, tokens]."""
    p, q = true.float().log_softmax(-1), found.float().log_softmax(-1)
    same = (true.argmax(-1) == found.argmax(-1)).float().mean()
    return float((p.exp() * (p - q)).sum(-1).mean()), float(same)


def logits(kind: str | None, chats: int = 40) -> Tensor:
    """The built-in model's, over chats that it was not trained on, products made by `kind`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from engine.builtin.corpus import chats as stream

    model: Any = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16)
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL_DIR)
    if kind:
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                linear: Any = module
                weight = module.weight.detach()
                product: Any = make_product(
                    kind, module.out_features, module.in_features, keep(kind, weight)
                )
                linear.forward = lambda x, product=product: (
                    product(x.flatten(0, -2)).view(*x.shape[:-1], -1).clone()
                )
    rows = []
    for _, chat in zip(range(chats), stream(1000), strict=False):
        text = tokenizer.apply_chat_template(chat.messages(), tokenize=False)
        ids = tokenizer(text, return_tensors="pt").input_ids
        rows.append(model(input_ids=ids).logits[0])
    return torch.cat(rows)


# What they read in a step, and those that keep real weights here.
KINDS = {
    "ours": weight_bytes(16, None, 0),
    "F.linear": weight_bytes(16, None, 0),
    "int8": weight_bytes(8, None, 2),
    "torchao int8": weight_bytes(8, None, 2),
    **{f"int4/{g}": weight_bytes(4, g, 4) for g in GROUPS},
    **{f"int4/{g}{COMPILED}": weight_bytes(4, g, 4) for g in GROUPS},
    **{f"onnx int4/{g}": weight_bytes(4, g, 4) for g in (32, 128)},
    "openvino int8": weight_bytes(8, None, 4),
    **{f"openvino int4/{g}": weight_bytes(4, g, 4) for g in (64, 128)},
}
ROUNDED = ("ours", "int8", *(f"int4/{g}" for g in GROUPS))


def print_errors(kinds: list[str]) -> None:
    """Of one product to float32, and of the built-in model's logits to its own bfloat16."""
    import torch

    x, weight = torch.randn(64, 896).bfloat16(), torch.randn(9728, 896) / 896**0.5
    true, base = x.float() @ weight.T, logits(None)
    for kind in kinds:
        product: Any = make_product(kind, 9728, 896, keep(kind, weight.bfloat16()))
        kl, same = compare(logits(kind), base)
        print(
            f"  {kind:20} product {relative(product(x), true):.4f}; "
            f"{len(base)} tokens: KL {kl:.5f}, same {same:.2%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,8,32,512")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas; ours is always")
    parser.add_argument("--errors", action="store_true", help="errors and calls, not times")
    options = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "300000")  # see benchmarks.layer
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no processes beside this one
    import torch

    native = kernels()
    if native is None:
        raise SystemExit("this installation has no native kernels")
    native.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    weights = {(n, k): torch.randn(n, k).div(k**0.5).bfloat16() for n, k in (*LAYER, HEAD)}
    wanted = [kind for kind in KINDS if kind in {"ours", *options.kinds.split(",")}]
    kinds = [kind for kind in wanted if installed(kind)]
    print(f"{native.level()}, {options.threads} threads, torch {torch.__version__}")
    with torch.inference_mode():
        if options.errors:
            print_errors([kind for kind in kinds if kind in ROUNDED])
            for what, taken in calling().items():
                print(f"{what}: {1e3 * taken:.2f} ms")
            return
        for rows in map(int, options.rows.split(",")):
            times, others = measure(kinds, weights, rows, options.rounds)
            print(f"{rows} rows; ms of 97 products; others took {others:.1%} of the cores")
            for kind in wanted:
                if kind not in times:
                    print(f"  {kind:20} not installed")
                    continue
                print(
                    f"  {kind:20} {1e3 * times[kind]:9.2f} ms {KINDS[kind] / 1e9:6.3f} GB "
                    f"{times['ours'] / times[kind]:6.2f} of ours' speed",
                    flush=True,
                )


if __name__ == "__main__":
    main()
