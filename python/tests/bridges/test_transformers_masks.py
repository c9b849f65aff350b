"""qkv.transformers.model_mask against transformers' own masks."""

from typing import Any

import pytest
import qkv.transformers
from support_transformers import inputs_of, torch
from transformers import masking_utils

_CAUSAL, _BOTH = masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function
_BLOCKS = torch.tensor([[-1, 0, 0, 0, -1, -1, 1, 1, -1, 2, 2], [0, 0, -1, -1, -1, 1, 1, 1, 1, -1, -1]])
FUNCTIONS: dict[str, Any] = {
    "causal": _CAUSAL,
    "both": _BOTH,
    "sliding": masking_utils.sliding_window_causal_mask_function(3),
    "sliding both": masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunked": masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long)),
    "blocks": masking_utils.or_masks(_CAUSAL, masking_utils.blockwise_overlay(_BLOCKS)),
}
POSITIONS = {  # q_length, kv_length, q_offset, kv_offset
    "square": (11, 11, 0, 0),
    "decoding": (1, 11, 10, 0),
    "cached": (3, 11, 8, 0),
    "static cache": (4, 11, 3, 0),
    "static prefill": (4, 11, 0, 0),
    "sliding cache": (2, 5, 9, 6),
}


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("padding", ["none", "all", "right", "left", "holes"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_masks_are_transformers(function: str, padding: str, position: str) -> None:
    q_length, kv_length, q_offset, kv_offset = POSITIONS[position]
    given = None if padding == "none" else torch.ones(2, 11, dtype=torch.bool)
    if padding in ("right", "left", "holes"):
        given = inputs_of("gpt2", padding)["attention_mask"].bool()
    if position.startswith("static") and given is not None:
        given = given[:, : q_offset + q_length]  # as generate() gives it: without the keys that are not there yet
    arguments = {
        "batch_size": 2, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset,
        "mask_function": FUNCTIONS[function], "attention_mask": given,
    }  # fmt: skip
    made = qkv.transformers.model_mask(**arguments)
    expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    assert torch.equal(made.to_dense(), expected.expand(made.shape))
    counted_from_elsewhere = function == "chunked" and position in ("static cache", "sliding cache")
    assert made.dense == counted_from_elsewhere


def test_packed_and_unknown_masks() -> None:
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1]])
    packed = masking_utils.find_packed_sequence_indices(positions)
    for inner in (_CAUSAL, FUNCTIONS["sliding"], FUNCTIONS["chunked"]):
        function = masking_utils.packed_sequence_compatibility_function(inner, positions, packed)
        made = qkv.transformers.model_mask(2, 11, 11, mask_function=function)
        assert torch.equal(
            made.to_dense(), masking_utils.sdpa_mask(2, 11, 11, mask_function=function, allow_is_causal_skip=False)
        )
        assert made.dense == (inner is FUNCTIONS["chunked"])
    own = masking_utils.and_masks(_CAUSAL, lambda b, h, i, j: (i + j) % 3 != 1)
    made = qkv.transformers.model_mask(
        2, 11, 11, mask_function=own, attention_mask=inputs_of("gpt2", "right")["attention_mask"].bool()
    )
    assert made.dense
    assert made.to_dense()[1, 0, 10].tolist() == [(10 + j) % 3 != 1 and j < 7 for j in range(11)]


def test_the_mask_must_be_of_the_layers_keys() -> None:
    """DeepSeek-V4 appends compressed keys when the mask is made; Pix2Struct has a wider one than keys."""
    q = torch.randn(1, 2, 3, 8, generator=torch.Generator().manual_seed(0))
    k = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(1))
    attend = qkv.transformers.attention_forward
    for q_length, kv_length in ((3, 4), (2, 5)):
        with pytest.raises(qkv.UnsupportedError, match=rf"5 keys with 3 queries, its mask has {kv_length} keys and {q_length}"):
            attend(torch.nn.Module(), q, k, k, qkv.transformers.model_mask(1, q_length, kv_length))
    wider = qkv.transformers.model_mask(1, 3, 7, q_offset=2)
    made, _ = attend(torch.nn.Module(), q, k, k, wider)
    expected = qkv.attention(q, k, k, keep=wider.to_dense()[..., :5])
    assert torch.equal(made.transpose(1, 2), expected)


def test_slices_are_masks_again_and_nothing_is_computed_with_them() -> None:
    """Gemma-4 computes its last layers for the last tokens alone; Doge asks for a type."""
    whole = qkv.transformers.model_mask(2, 11, 11, attention_mask=inputs_of("gpt2", "left")["attention_mask"].bool())
    last = whole[:, :, slice(-3, None), :]
    assert isinstance(last, qkv.transformers.ModelMask) and last.shape == (2, 1, 3, 11)
    assert torch.equal(last.to_dense(), whole.to_dense()[:, :, -3:])
    assert torch.equal(whole[:, 0], whole.to_dense()[:, 0])
    for refused in (lambda: last + torch.zeros(1), lambda: whole[None], lambda: whole.dtype):
        with pytest.raises(qkv.UnsupportedError, match='load it with attn_implementation="eager"'):
            refused()
