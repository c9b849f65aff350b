"""Shared by the PyTorch tests: running the same computation in PyTorch (float64: the truth; the type under test: the naive
form) and on qkv, values and gradients, and a bound computed from the three. A chain of layers has no written A
(tests/support/checks/bounds.h); the bound here is error(fast) <= 3 * error(naive) + 8 eps * max(1, max|truth|),
error(naive) the largest of the tensor. Gradients likewise. In float64 the naive form is the truth; its error is float32's, scaled.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import qkv
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

EPSILON = {torch.float32: 2.0**-23, torch.float64: 2.0**-52, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
DTYPES = tuple(EPSILON)


@contextlib.contextmanager
def ranks_of(world: int, target: Callable[..., None], *arguments: Any) -> Iterator[list[Any]]:
    """Processes of target(rank, *arguments), each forked from one that has imported PyTorch and has no threads yet; none outlives the block."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "qkv.torch"])
    ranks = [context.Process(target=target, args=(rank, *arguments)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()


def join(rank: int, world: int, store: Path | str, **environment: str) -> None:
    """Makes this process one of the ranks that meet at a file, on one thread."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", **environment}  # otherwise gloo asks for the address of this host's name
    torch.set_num_threads(1)
    qkv.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers that every floating type holds exactly, so that all types compute on the same inputs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(torch.float16).to(torch.bfloat16).to(dtype)


def leaf(seed: int, *shape: int) -> Tensor:
    """Numbers that require their gradient."""
    return numbers(seed, *shape).requires_grad_()


@contextlib.contextmanager
def everything_in(dtype: torch.dtype) -> Iterator[None]:
    """torch.float32, torch.float and Tensor.float() mean dtype: transformers computes angles, norms, gates and softmax in float32 of float64
    too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("float", "float32"):
            patch.setattr(torch, name, dtype)
        patch.setattr(Tensor, "float", lambda x: x.to(dtype))
        yield


def theirs(*arguments: object, **options: object) -> Tensor:
    """PyTorch's scaled_dot_product_attention by its math path."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*arguments, **options)  # type: ignore[arg-type]


def cast(x: Any, dtype: torch.dtype) -> Any:
    """Floating tensors (of tuples too) to dtype, leaves that require grad as they did; everything other than that as it is."""
    if isinstance(x, Tensor) and x.is_floating_point():
        return x.detach().to(dtype, copy=True).requires_grad_(x.requires_grad)
    return x


def run(function: Callable[..., Any], arguments: Sequence[Any], dtype: torch.dtype) -> list[Tensor | None]:
    """Results of function(*arguments) in dtype, and gradients of sum(result * fixed numbers) for each argument that requires
    grad."""
    own = [cast(x, dtype) for x in arguments]
    results = function(*own)
    results = [r for r in (results if isinstance(results, (tuple, list)) else (results,)) if isinstance(r, Tensor)]
    leaves = [x for x in own if isinstance(x, Tensor) and x.requires_grad]
    if leaves:
        loss = sum((r.double() * numbers(100 + n, *r.shape)).sum() for n, r in enumerate(results) if r.requires_grad)
        return [*results, *torch.autograd.grad(loss, leaves, allow_unused=True)]
    return results


def expect_close(fast: Tensor | None, exact: Tensor | None, naive: Tensor | None, dtype: torch.dtype, what: str) -> None:
    """`fast` within the bound; NaN exactly where the truth is."""
    if exact is None or fast is None or naive is None:
        assert (fast is None or not fast.any()) and (exact is None or not exact.any()), f"{what}: one has no gradient"
        return
    assert fast.shape == exact.shape, f"{what}: shape {list(fast.shape)}, expected {list(exact.shape)}"
    if fast.numel() == 0:
        return
    fast, exact, naive = (x.detach().double() for x in (fast, exact, naive))
    assert torch.equal(fast.isnan(), exact.isnan()), f"{what}: NaN elsewhere"
    assert torch.equal(fast.isinf(), exact.isinf()), f"{what}: infinity elsewhere"
    keep = exact.isfinite()
    if not keep.any():
        return
    error, naive_error = (fast - exact)[keep].abs().max(), (naive - exact)[keep].abs().max()
    bound = 3 * naive_error + 8 * EPSILON[dtype] * exact[keep].abs().max().clamp(min=1)
    assert error <= bound, f"{what}: error {error:.3g} > bound {bound:.3g}"


def expect_all(fast: dict[str, Any], exact: dict[str, Any], naive: dict[str, Any], dtype: torch.dtype = torch.float32, what: str = "") -> None:
    """Every result of a name, tensors or arrays."""
    assert fast.keys() == exact.keys()
    for name in exact:
        expect_close(*(torch.as_tensor(x[name]) for x in (fast, exact, naive)), dtype, f"{what} {name}")


def beside(truth: Sequence[Tensor | None], narrow: Sequence[Tensor | None]) -> list[Tensor | None]:
    """float64 has no wider type beside it: a naive result whose distance from truth is float32's, times 2^-29, the ratio of their
    epsilons."""
    ratio = EPSILON[torch.float64] / EPSILON[torch.float32]

    def moved(x: Tensor | None, y: Tensor | None) -> Tensor | None:
        if x is None or y is None or not x.is_floating_point():
            return x
        away = (y.double() - x) * ratio
        return x + torch.where(away.isfinite(), away, 0.0)

    return [moved(x, y) for x, y in zip(truth, narrow)]


def compare(
    ours: Callable[..., Any], theirs: Callable[..., Any], arguments: Sequence[Any], dtype: torch.dtype = torch.float32
) -> list[Tensor | None]:
    """Results and gradients of ours in dtype against theirs in float64. Returns ours."""
    exact = run(theirs, arguments, torch.float64)
    naive = (
        run(theirs, arguments, dtype) if dtype is not torch.float64 else beside(exact, run(theirs, arguments, torch.float32))
    )
    fast = run(ours, arguments, dtype)
    assert len(fast) == len(exact)
    for n, (f, e, m) in enumerate(zip(fast, exact, naive)):
        if f is not None and f.is_floating_point():
            assert f.dtype is (m.dtype if m is not None else f.dtype), f"{n}: type {f.dtype}"
        expect_close(f, e, m, dtype, f"result {n}")
    return fast


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None, scale: float | None, unit: bool
) -> tuple[Tensor, Tensor]:
    """The gated delta rule, or with g [B, T, Hv, K] Kimi Delta Attention, in flash-linear-attention's layout (qkv/torch/linear.py), token by
    token, in the type of the inputs, sums in float32 at least."""
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    group = v.shape[2] // q.shape[2]
    q, k, v, g, beta = (x.to(dtype) for x in (q.repeat_interleave(group, 2), k.repeat_interleave(group, 2), v, g, beta))
    if unit:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = torch.zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3], dtype=dtype) if state is None else state.to(dtype)
    outs = []
    for t in range(q.shape[1]):
        s = s * g[:, t].exp().reshape(*v.shape[:1], v.shape[2], -1, 1)
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", s, k[:, t]))
        s = s + k[:, t, :, :, None] * u[:, :, None]
        outs.append(scale * torch.einsum("bhkv,bhk->bhv", s, q[:, t]))
    return torch.stack(outs, 1), s
