"""bits="invariant" in a small Llama of transformers whose Linears run through qkv: log-probabilities of generated tokens are the training
forward's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("support_transformers")
import qkv
import qkv.transformers
from support_transformers import tf, torch

PROMPT, TOKENS = 9, 24


@pytest.fixture
def llama() -> Iterator[Any]:
    qkv.transformers.register()
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=61, pad_token_id=0, bos_token_id=1, eos_token_id=None, attn_implementation="qkv",
    )  # fmt: skip
    model = tf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 if parameter.ndim > 1 else 1)  # attention is far from uniform
    qkv.set_bits("invariant")
    yield model
    qkv.set_bits("fast")


def generated(model: Any) -> tuple[Any, list[Any]]:
    """(ids [1, PROMPT + TOKENS], logits of each new token)."""
    prompt = torch.arange(3, 3 + PROMPT)[None]
    made = model.generate(prompt, max_new_tokens=TOKENS, do_sample=False, return_dict_in_generate=True, output_logits=True)
    return made.sequences, [logits[0] for logits in made.logits]


def test_where_linears_run_through_qkv_logits_are_the_whole_sequence_s(llama: Any) -> None:
    with torch.no_grad():
        ids, logits = generated(qkv.transformers.optimize(llama))
        whole = llama(ids).logits[0]
    for step, row in enumerate(logits):
        assert torch.equal(row, whole[PROMPT + step - 1]), f"token {step}"
    log_probs = torch.stack(logits).double().log_softmax(-1)
    assert torch.equal(log_probs, whole[PROMPT - 1 : -1].double().log_softmax(-1))
