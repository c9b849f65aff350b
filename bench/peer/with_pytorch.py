"""PyTorch: scaled_dot_product_attention with its flash and math kernels, nn.MultiheadAttention's fast path, the textbook.

Forward runs in inference_mode; backward is torch.autograd.grad on a retained graph, so that its time excludes forward.
"""

import contextlib
import copy
import functools
import itertools
import subprocess
import sys
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from . import pytorch_forms, textbook, toy
from .pytorch_forms import inference

KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
MATH_LENGTH = 4096  # the math kernel stores S x S numbers per head
warnings.filterwarnings("ignore", category=UserWarning)


def version():
    return torch.__version__


def settings(threads):
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    products = "MKL" if torch.backends.mkl.is_available() else "no MKL"
    return f"{torch.get_num_threads()} thread(s), {torch.backends.cpu.get_cpu_capability()}, {products}"


def variants(case):
    """name -> (run, error against f64 or None where it cannot be compared)."""
    makers = {
        "forward": _forward,
        "decode": _decode,
        "prefill": _decode,
        "backward": _gradients,
        "fwdbwd": _gradients,
        "weights": _weights,
        "linear": _linear,
        "linear-backward": _linear,
        "mha": _layer,
        "mha-train": _layer,
        "lm-step": _lm_step,
        "lm-process": _lm_process,
        "packed": pytorch_forms.packed,
        "packed-backward": pytorch_forms.packed,
        "hybrid": pytorch_forms.hybrid,
        "hybrid-backward": pytorch_forms.hybrid,
    }
    return dict(makers[case.kind](case)) if case.dtype in TYPES else {}


def _dtype(case):
    return TYPES[case.dtype]


def _tensors(case):
    return [torch.from_numpy(x).to(_dtype(case)) for x in textbook.numbers(case)]


def _numpy(x):
    return x.detach().to(torch.float32).numpy()


def _kernels(case):
    return {name: kernel for name, kernel in KERNELS.items() if name != "math" or case.q_len <= MATH_LENGTH}


def _row_error(case, out, *qkv):
    return textbook.row_error(case, _numpy(out), *map(_numpy, qkv))


def _sdpa(kernel, *inputs, **options):
    with sdpa_kernel(kernel):
        return sdpa(*inputs, **options)


def _forward(case):
    q, k, v, _ = _tensors(case)
    for name, kernel in _kernels(case).items():
        run = inference(lambda kernel=kernel: _sdpa(kernel, q, k, v, is_causal=case.causal))
        yield name, (run, _row_error(case, run(), q, k, v))


def _decode(case):
    """enable_gqa with each kernel; and the query heads of a group as rows of one head, as a user would write it by hand."""
    q, k, v, _ = _tensors(case)
    # PyTorch's is_causal would let the first query attend to the first key only.
    keep = torch.from_numpy(textbook.keep_of(case)[0]) if case.causal else None
    turns = itertools.cycle(textbook.caches(case, [k, v], torch.clone))
    group = case.heads // case.hkv
    rows = q.reshape(case.batch, case.hkv, group * case.q_len, case.head_dim)
    rows_keep = None if keep is None else keep.repeat(group, 1)
    for name, kernel in KERNELS.items():
        calls = {
            "enable_gqa": lambda kernel=kernel: _sdpa(kernel, q, *next(turns), attn_mask=keep, enable_gqa=True),
            "group as rows": lambda kernel=kernel: _sdpa(kernel, rows, *next(turns), attn_mask=rows_keep).view(q.shape),
        }
        for label, call in calls.items():
            with contextlib.suppress(RuntimeError):
                yield f"{name}, {label}", (inference(call), _row_error(case, inference(call)(), q, k, v))


def _options(case):
    """Keyword arguments of SDPA; a bias requires its gradient."""
    options = {"is_causal": case.causal, "dropout_p": 0.1 if case.extra == "dropout" else 0.0}
    if case.extra == "bias":
        options["attn_mask"] = torch.from_numpy(textbook.bias_of(case)).to(_dtype(case)).requires_grad_()
    if case.extra in ("window", "lengths"):
        options["attn_mask"] = torch.from_numpy(textbook.keep_of(case))[:, None]
    return options


def _graph(case, kernel):
    """(forward, inputs, dout): forward() gives the output with its graph."""
    q, k, v, dout = _tensors(case)
    options = _options(case)
    inputs = [x.requires_grad_() for x in (q, k, v)] + ([options["attn_mask"]] if case.extra == "bias" else [])

    return lambda: _sdpa(kernel, q, k, v, **options), inputs, dout


def _gradient_error(case, kernel):
    if case.extra == "dropout":
        return None  # PyTorch draws other random numbers
    small = case.small()
    forward, inputs, dout = _graph(small, kernel)
    got = torch.autograd.grad(forward(), inputs, dout)
    return textbook.gradient_error(list(map(_numpy, got)), small, list(map(_numpy, (*inputs[:3], dout))))


def _gradients(case):
    """On a retained graph, or with its forward."""
    kernels = _kernels(case) if case.kind == "backward" else KERNELS
    for name, kernel in kernels.items():
        forward, inputs, dout = _graph(case, kernel)
        try:
            out = forward()
        except RuntimeError:  # the flash kernel takes neither dropout nor a bias that requires its gradient
            continue
        if case.kind == "backward":
            run = functools.partial(torch.autograd.grad, out, inputs, dout, retain_graph=True)
        else:

            def run(forward=forward, inputs=inputs, dout=dout):
                return torch.autograd.grad(forward(), inputs, dout)

        yield name, (run, _gradient_error(case, kernel))


def _weights(case):
    q, k, v, _ = _tensors(case)

    def both():
        weights = torch.softmax((q * case.head_dim**-0.5) @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    run = inference(both)
    yield "textbook", (run, _row_error(case, run()[0], q, k, v))


def _linear(case):
    """Forward, or backward on a retained graph."""
    x, weight, bias, dy = (torch.from_numpy(array).to(_dtype(case)) for array in textbook.linear_numbers(case))
    if case.kind == "linear":
        run = inference(lambda: torch.nn.functional.linear(x, weight, bias))
        exact = textbook.linear(_numpy(x), _numpy(weight), _numpy(bias))
        yield "F.linear", (run, textbook.difference(_numpy(run()), exact))
        return
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    run = functools.partial(torch.autograd.grad, torch.nn.functional.linear(*inputs), inputs, dy, retain_graph=True)
    rows, matrix, gradient = (_numpy(tensor).astype("float64") for tensor in (x, weight, dy))
    exact = (gradient @ matrix, gradient.T @ rows)
    yield "F.linear", (run, max(textbook.difference(_numpy(got), want) for got, want in zip(run(), exact)))


class SdpaLayer(torch.nn.Module):
    """The layer as it is usually written: one product for q, k, v, SDPA, one product for the output."""

    def __init__(self, layer):
        super().__init__()
        self.heads, self.layer = layer.num_heads, layer

    def forward(self, x):
        batch, length, width = x.shape
        qkv = torch.nn.functional.linear(x, self.layer.in_proj_weight, self.layer.in_proj_bias)
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.layer.out_proj(sdpa(q, k, v).transpose(1, 2).reshape(batch, length, width))


def _layer(case):
    train = case.kind == "mha-train"
    torch.manual_seed(17)
    layer = torch.nn.MultiheadAttention(case.embed_dim, case.heads, batch_first=True).train(train)
    x = torch.rand(case.batch, case.q_len, case.embed_dim, requires_grad=train) * 2 - 1
    x = x.detach().requires_grad_(train)
    dy = torch.rand(case.batch, case.q_len, case.embed_dim)
    exact = _layer_f64(layer, x)
    wrapped = SdpaLayer(layer)
    calls = {"nn.MultiheadAttention": lambda: layer(x, x, x, need_weights=False)[0], "linear + SDPA": lambda: wrapped(x)}
    if case.dtype == "bf16":
        calls = _bf16_layers(layer, x)
        dy = dy.bfloat16()
    for name, call in calls.items():
        run = (lambda call=call: call().backward(dy)) if train else inference(call)
        yield name, (run, textbook.difference(_numpy(call()), exact))


def _bf16_layers(layer, x):
    """Parameters in bf16, and in f32 under autocast; x and the output are bf16 in both."""
    rounded = copy.deepcopy(layer).bfloat16()
    own, around, cast = SdpaLayer(rounded), SdpaLayer(layer), x.detach().bfloat16().requires_grad_(x.requires_grad)

    def autocast(call):
        with torch.autocast("cpu", torch.bfloat16):
            return call(cast)

    return {
        "nn.MultiheadAttention": lambda: rounded(cast, cast, cast, need_weights=False)[0],
        "linear + SDPA": lambda: own(cast),
        "linear + SDPA, autocast": lambda: autocast(around),
    }


def _layer_f64(layer, x):
    weight, bias = (p.detach().double() for p in (layer.in_proj_weight, layer.in_proj_bias))
    batch, length, width = x.shape
    qkv = (x.detach().double() @ weight.T + bias).view(batch, length, 3, layer.num_heads, -1).permute(2, 0, 3, 1, 4)
    attended = sdpa(*qkv).transpose(1, 2).reshape(batch, length, width)
    return (attended @ layer.out_proj.weight.detach().double().T + layer.out_proj.bias.detach().double()).numpy()


def _lm_step(_case):
    for fused in (True, False):
        step = toy.trainer(fused)
        yield f"Adam {'fused' if fused else 'foreach'}", (step, None)


def _lm_process(_case):
    command = [sys.executable, toy.__file__, "800", str(torch.get_num_threads())]
    yield "python, 800 steps", (lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), None)
