"""Hugging Face's flattening collator through qkv.transformers, from the collator on: the logits, loss and gradients of sequences
that are packed into one row are those of each sequence alone."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("support_transformers")
import qkv.transformers
from support_torch import everything_in, expect_all
from support_transformers import model_of, tf, torch
from torch import Tensor

LENGTHS = (5, 1, 9, 2, 17)
COLLATORS = {
    "position ids": {},
    "and FlashAttention's arguments": {"return_flash_attn_kwargs": True, "return_seq_idx": True},
}


def features() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(3)
    return [{"input_ids": torch.randint(3, 61, (n,), generator=generator).tolist()} for n in LENGTHS]


def collated(**options: Any) -> dict[str, Any]:
    return dict(tf.DataCollatorWithFlattening(return_tensors="pt", **options)(features()))


def logits_and_gradients(model: Any, forward: Callable[[Any], Tensor]) -> dict[str, Tensor]:
    logits = forward(model)
    dout = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    (logits.double() * dout).sum().backward()
    return {"logits": logits, **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


def alone(model: Any) -> Tensor:
    return torch.cat([model(input_ids=torch.tensor([f["input_ids"]]), use_cache=False).logits for f in features()], 1)


def expect_alone(name: str, forward: Callable[[Any], Tensor]) -> None:
    """forward(model on qkv), float32, against eager attention on each sequence alone in float64; eager in float32 is the naive
    form."""
    with everything_in(torch.float64):
        exact = logits_and_gradients(model_of(name, torch.float64), alone)
    naive = logits_and_gradients(model_of(name), alone)
    model = model_of(name)
    model.set_attn_implementation("qkv")
    fast = logits_and_gradients(model, forward)
    expect_all(fast, exact, naive, what=name)


@pytest.mark.parametrize("collator", COLLATORS)
@pytest.mark.parametrize("name", ("llama", "qwen3", "mistral", "gemma2"))
def test_each_sequence_is_as_if_it_were_alone(name: str, collator: str) -> None:
    batch = collated(**COLLATORS[collator])
    batch.pop("labels")
    assert batch["input_ids"].shape == (1, sum(LENGTHS))
    expect_alone(name, lambda model: model(**batch, use_cache=False).logits)


def test_offsets_alone_keep_neighbours_apart() -> None:
    """Without position ids that restart, and with a cache, transformers' own mask does not know of sequences: FlashAttention goes by
    cu_seq_lens, and so does qkv."""
    batch = collated(return_flash_attn_kwargs=True)
    batch.pop("labels")
    for use_cache in (False, True):
        expect_alone("llama", lambda model, cache=use_cache: model(**batch, use_cache=cache).logits)


def test_the_loss_is_the_mean_over_tokens_of_each_alone() -> None:
    model = model_of("llama", torch.float64)
    batch = collated()
    with everything_in(torch.float64):
        losses = [
            model(input_ids=x, labels=x, use_cache=False).loss * (x.shape[1] - 1)
            for x in (torch.tensor([f["input_ids"]]) for f in features() if len(f["input_ids"]) > 1)
        ]
        model.set_attn_implementation("qkv")
        loss = model(**batch, use_cache=False).loss
    assert torch.allclose(loss, sum(losses) / (sum(LENGTHS) - len(LENGTHS)), rtol=1e-12)


def test_padding_behind_the_last_sequence_and_what_does_not_fit() -> None:
    q = torch.randn(1, 2, 9, 8)
    cu = torch.tensor([0, 4, 7])
    module = torch.nn.Module()
    packed = qkv.transformers.attention_forward(module, q, q, q, None, cu_seq_lens_q=cu)[0]
    whole = qkv.transformers.attention_forward(module, q[:, :, :4], q[:, :, :4], q[:, :, :4], None)[0]
    assert torch.allclose(packed[:, :4], whole, atol=8 * 2.0**-23 * float(q.abs().max()))
    with pytest.raises(ValueError, match="packed in a batch of one"):
        qkv.transformers.attention_forward(module, *(torch.cat([q, q]),) * 3, None, cu_seq_lens_q=cu)
    with pytest.raises(ValueError, match="use_cache=False"):
        qkv.transformers.attention_forward(module, q[:, :, :1], q, q, None, cu_seq_lens_q=cu)
