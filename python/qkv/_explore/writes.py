"""What heads write: of every key the norm of v W_o, of every query the norm of the sum, and of decoders, through the final norm, the tokens
whose logits a head raises and lowers.

Direct attribution holds the final norm's divisor at what the run gave, as TransformerLens does: LayerNorm takes the mean off each part and
divides by the deviation of the whole, RMSNorm divides alone; the norm's weight belongs to the unembedding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..torch._products import linear
from .layer import Layer
from .outputs import Outputs, Site, is_plain, weight_of

MOST = 5  # tokens that a head raises, and that it lowers, of each query
OF_KEYS = 3  # tokens of each key
_WORK = 1e11  # multiplications for them in one forward: of long texts the last queries only
_PART = 1 << 24  # logits at once


@dataclass
class Writes:
    """Of one call; arrays are [B, heads, ...]."""

    norms: np.ndarray = field(repr=False)  #: [.., Tk]
    sizes: np.ndarray = field(repr=False)  #: [.., Tq]
    next_token: np.ndarray | None = field(default=None, repr=False)  #: [.., Tq], 0 of the last query
    copies: np.ndarray | None = None  #: [B, heads]
    push: np.ndarray | None = field(default=None, repr=False)  #: [.., n, 2 MOST] token numbers, raised and lowered
    push_by: np.ndarray | None = field(default=None, repr=False)
    ov: np.ndarray | None = field(default=None, repr=False)  #: [.., n, OF_KEYS]

    def undo_direct(self) -> None:
        self.next_token = self.copies = self.push = self.push_by = self.ov = None


class Norm:
    """A norm as g (x - mean) / s + b, where `centres` says whether there is a mean: found by asking it, whatever its class is."""

    def __init__(self, module: nn.Module, width: int) -> None:
        dtype = next((p.dtype for p in module.parameters()), torch.float32)
        x = 1000 * torch.linspace(1, 2, width, dtype=dtype) * torch.tensor([1, -1], dtype=dtype).repeat(width // 2 + 1)[:width]
        with torch.no_grad():
            shift, one, other = (module(y).double() for y in (x * 0, x, x + 500))
        self.centres = bool(torch.allclose(one, other, rtol=1e-3, atol=1e-3))
        middle = self.centred(x.double())
        self.bias = shift
        self.weight = (one - shift) * middle.square().mean().sqrt() / middle

    def centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centres else x

    def divisor(self, x: Tensor, y: Tensor) -> Tensor | None:
        """s of every row of x, where y came out; None: it is not such a norm."""
        part, rest = self.weight * self.centred(x.double()), y.double() - self.bias
        s = part.square().sum(-1) / (part * rest).sum(-1)
        largest = float(rest.abs().max())
        return s if np.isfinite(largest) and torch.allclose(part / s[..., None], rest, rtol=1e-2, atol=largest * 1e-2) else None


class Unembedding:
    """The final norm and what follows it."""

    def __init__(self, norm: nn.Module, head: nn.Module) -> None:
        self.module, self.head = norm, head
        self.words = head.weight.detach()  # type: ignore[union-attr, operator]
        self.norm = Norm(norm, self.words.shape[1])
        self.mean = self.words.mean(0)

    @staticmethod
    def of(model: nn.Module) -> Unembedding | None:
        """The last norm beside the blocks, if the model has an unembedding and both are understood."""
        head = model.get_output_embeddings() if hasattr(model, "can_generate") and model.can_generate() else None
        beside = [m for name, m in model.named_modules() if "Norm" in type(m).__name__ and not any(p.isdigit() for p in name.split("."))]
        if not is_plain(head) or not beside:
            return None
        try:
            return Unembedding(beside[-1], head)
        except (RuntimeError, TypeError):  # of another width, or with other arguments
            return None

    def read(self, weight: Tensor) -> Tensor:
        """Columns of a projection [.., d] as the unembedding reads them: centred, times the norm's weight."""
        return self.norm.centred(weight) * self.norm.weight.to(weight.dtype)


def _roots(weight: Tensor) -> Tensor:
    """S [H, D, D] with S S^T = W W^T of every head, so that |x W| = |x S|, and S is small."""
    square = weight.double() @ weight.double().transpose(1, 2)
    known = square.isfinite().all(2).all(1)[:, None, None]
    square = square.where(known, torch.eye(square.shape[1], dtype=torch.float64))
    least = 1e-13 * square.diagonal(0, 1, 2).amax(1) + 1e-200  # what a direction that W forgets may have
    roots = torch.linalg.cholesky(square + least[:, None, None] * torch.eye(square.shape[1], dtype=torch.float64))
    return roots.where(known, torch.nan).to(weight.dtype)


def _products(rows: Tensor, words: Tensor) -> Tensor:
    return linear(rows, words, None, invariant=False) if words.dtype in (torch.float32, torch.bfloat16) else rows @ words.T


class Writer:
    """Numbers of what heads write, made while a model runs. ids [B, T]: the tokens, for what is said of decoders."""

    def __init__(self, model: nn.Module, ids: np.ndarray | None, calls: int) -> None:
        self.outputs = Outputs(model, self._found)
        self.last = Unembedding.of(model) if ids is not None else None
        self.ids = None if ids is None else torch.from_numpy(ids)
        self.calls = calls
        config = getattr(model, "config", None)
        self.factor = float(getattr(config, "residual_multiplier", None) or 1)
        self.missing: list[str] = []
        self._layers: list[Layer] = []
        self._divisor: Tensor | None = None
        self._normed: Tensor | None = None
        self._is_read = False

    def attended(self, index: int, name: str, layer: Layer | None, v: Tensor, out: Tensor, *, is_last: bool) -> None:
        """is_last: the call belongs to the stack whose end the unembedding reads."""
        self.missing.append(name)
        self.outputs.attended(index, out, (name, layer, v, out, is_last))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        with self.outputs.listening(), contextlib.ExitStack() as stack:
            if self.last is not None:
                stack.callback(self.last.module.register_forward_hook(self._divide).remove)
                stack.callback(self.last.head.register_forward_pre_hook(self._unembed).remove)
            yield
        self._finish()

    def notes(self) -> list[str]:
        """What could not be said, and why."""
        made = []
        if self.missing:
            made.append(f"what heads write is not known of {', '.join(self.missing[:3])}{' ...' * (len(self.missing) > 3)}: "
                        "no projection reads attention's result as it is")  # fmt: skip
        if self.outputs.is_normed:
            made.append("what heads write goes through a norm before it is added: its size is given before that norm, tokens are not")
        return made

    @torch.autocast("cpu", enabled=False)
    def _found(self, site: Site, call: Any) -> None:
        name, layer, v, out, is_last = call
        self.missing.remove(name)
        if layer is None or not out.shape[2] or not v.shape[2]:
            return
        weight = self.factor * weight_of(site.module, site.heads * site.width).unflatten(0, (site.heads, site.width))  # [H, D, d]
        weight = weight if weight.dtype == torch.float64 else weight.float()
        heads = list(layer.heads)
        weight, z = weight[heads], out[:, heads].to(weight.dtype)
        x = v[:, [h * v.shape[1] // out.shape[1] for h in heads]].to(weight.dtype)
        roots = _roots(weight)
        layer.writes = made = Writes((x @ roots).norm(dim=-1).numpy(), (z @ roots).norm(dim=-1).numpy())
        self._layers.append(layer)
        ids, last = self.ids, self.last
        if last is None or ids is None or not is_last or layer.cross or ids.shape != (out.shape[0], out.shape[2]) or v.shape[2] != ids.shape[1]:
            return
        read = last.read(weight)
        towards = (last.words[ids] - last.mean).to(weight.dtype)  # [B, T, d]
        own = _products(towards, read.flatten(0, 1)).unflatten(-1, read.shape[:2]).transpose(1, 2)  # [B, H, T, D]
        made.next_token = torch.nn.functional.pad((z[:, :, :-1] * own[:, :, 1:]).sum(-1), (0, 1)).numpy()
        sizes = (x @ _roots(read)).norm(dim=-1) * towards.norm(dim=-1)[:, None]
        made.copies = ((x * own).sum(-1) / sizes.clamp(min=1e-30)).mean(-1).numpy()
        n = max(1, min(ids.shape[1], int(_WORK / (self.calls * len(heads) * last.words.numel() * len(ids)))))
        made.push_by, made.push = self._extremes(z[:, :, -n:] @ read, MOST, MOST)
        _, made.ov = self._extremes(x[:, :, -n:] @ read, OF_KEYS, 0)

    def _extremes(self, rows: Tensor, up: int, down: int) -> tuple[np.ndarray, np.ndarray]:
        """The largest and the smallest logits of rows [..., d], less their mean: values and numbers [..., up + down],
        or of all words where there are fewer."""
        words, mean = self.last.words, self.last.mean  # type: ignore[union-attr]
        up, down, values, numbers = min(up, len(words)), min(down, len(words)), [], []
        for part in rows.flatten(0, -2).split(max(1, _PART // len(words))):
            logits = _products(part.to(words.dtype), words)
            high, low = logits.topk(up, -1), logits.topk(down, -1, largest=False)
            values.append(torch.cat([high.values, low.values], -1).to(rows.dtype) - (part @ mean.to(rows.dtype))[:, None])
            numbers.append(torch.cat([high.indices, low.indices], -1))
        return torch.cat(values).unflatten(0, rows.shape[:-1]).numpy(), torch.cat(numbers).unflatten(0, rows.shape[:-1]).numpy()

    @torch.autocast("cpu", enabled=False)
    def _divide(self, _: nn.Module, args: tuple[Any, ...], y: Tensor) -> None:
        self._divisor, self._normed = self.last.norm.divisor(args[0], y), y  # type: ignore[union-attr]

    def _unembed(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        self._is_read = self._normed is not None and args[0].data_ptr() == self._normed.data_ptr()

    def _finish(self) -> None:
        for layer in self._layers:
            made = layer.writes
            if made is None or made.push_by is None or made.next_token is None:
                continue
            if self._divisor is None or not self._is_read or self.outputs.is_normed:
                made.undo_direct()
                continue
            s = self._divisor.to(torch.float64).numpy()[:, None]
            made.next_token = (made.next_token / s).astype(np.float32)
            made.push_by = (made.push_by / s[:, :, -made.push_by.shape[2] :, None]).astype(np.float32)
        self._normed = None
