"""Arguments that do not fit functions and layers of qkv.torch: errors that PyTorch's callers and Python's both catch."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv
import qkv.torch as qt
from operators import delta_inputs, latent_inputs, offsets, packed_leaves
from support_torch import numbers
from torch import Tensor, nn
from torch.nn.attention import bias
from torch.nn.attention import flex_attention as pytorchs

sdpa, flex, varlen, latent, delta = (
    qt.scaled_dot_product_attention, qt.flex_attention, qt.varlen_attn, qt.latent_attention, qt.chunk_gated_delta_rule,
)  # fmt: skip
X = numbers(1, 2, 3, 5, 8, dtype=torch.float32)
Q, K, V = (numbers(n, 2, 4, 7, 8, dtype=torch.float32)[:, :h] for n, h in enumerate((4, 2, 2)))
LAYER, TOKENS = qt.MultiheadAttention(12, 3, batch_first=True), numbers(1, 2, 7, 12, dtype=torch.float32)
P = [x.detach().float() for x in packed_leaves([5, 4], [5, 4], 4)]
CU, USED = offsets([5, 4]), torch.tensor([5, 4])
LATENT = [x.detach().float() for x in latent_inputs(5, 19, 2, 3)]
SCAN = [x.detach() for x in delta_inputs(2, 4, 2, 4, 8, 8, False)]
ONE = [x[:1] for x in SCAN[:5]]
BLOCKS = pytorchs.create_block_mask(lambda b, h, i, j: i >= j, None, None, 10, 7, device="cpu", BLOCK_SIZE=8)


def of_layer(*, attn_mask: Any = None, key_padding_mask: Any = None, **options: Any) -> Callable[[], Any]:
    return lambda: LAYER(TOKENS, TOKENS, TOKENS, attn_mask=attn_mask, key_padding_mask=key_padding_mask, **options)


def packed(q: Tensor = P[0], k: Tensor = P[1], v: Tensor = P[2], cu_q: Any = CU, cu_k: Any = CU, most: int = 5, **options: Any) -> Any:
    return lambda: varlen(q, k, v, cu_q, cu_k, most, most, **options)


def of_latent(position: int = -1, x: Any = None, *rest: Any, **options: Any) -> Any:
    return lambda: latent(*(x if n == position else y for n, y in enumerate(LATENT)), *rest, **options)


def of_delta(*tensors: Tensor, **options: Any) -> Any:
    return lambda: delta(*(tensors or SCAN[:5]), **options)


def changed(position: int, x: Tensor) -> list[Tensor]:
    return [x if n == position else y for n, y in enumerate(SCAN[:5])]


# words -> call, by the types that catch them.
VALUES: dict[str, Callable[[], Any]] = {
    "exclude each other": lambda: sdpa(X, X, X, attn_mask=torch.ones(5, 5, dtype=torch.bool), is_causal=True),
    "must broadcast": lambda: sdpa(X, X, X, attn_mask=torch.ones(4, 5, dtype=torch.bool)),
    "last axis": lambda: sdpa(X, X[..., :4], X),
    "number of rows": lambda: sdpa(X, X, X[:, :, :3]),
    "enable_gqa": lambda: sdpa(torch.cat([X, X], 1), X, X),
    "divide": lambda: sdpa(X, X[:, :2], X[:, :2], enable_gqa=True),
    "two axes": lambda: sdpa(X[0, 0, 0], X, X),
    "CPU": lambda: sdpa(X.to("meta"), X, X),
    "dropout_p must be from 0 to 1: got -0.5": lambda: sdpa(X, X, X, dropout_p=-0.5),
    "dropout_p must be from 0 to 1: got nan": lambda: sdpa(X, X, X, dropout_p=float("nan")),
    r"attn_mask must be dense.*sparse.*to_dense\(\)": lambda: sdpa(X, X, X, torch.eye(5).to_sparse()),
    r"causal_lower_right\(5, 5\): got one of \(4, 5\)": lambda: sdpa(X, X, X, bias.causal_lower_right(4, 5)),
    "exclude each other:": lambda: sdpa(X, X, X, bias.causal_lower_right(5, 5), is_causal=True),
    "was made for": lambda: flex(Q, K, V, block_mask=BLOCKS, enable_gqa=True),
    "enable_gqa ": lambda: flex(Q, K, V),
    r"query must be \[B, Hq, L, E\]": lambda: flex(Q[0], K[0], V[0]),
    "before a bias": lambda: flex(Q, Q, Q, [qkv.PositionBias.alibi(4), qt.SoftCap(1.0)]),
    "at most one bias": lambda: flex(Q, Q, Q, [qkv.PositionBias.alibi(4), qt.Relative(numbers(9, 7, 4))]),
    "is_causal needs attn_mask": of_layer(is_causal=True),
    "key_padding_mask must be": of_layer(key_padding_mask=torch.zeros(2, 3, dtype=torch.bool)),
    "attn_mask must be": of_layer(attn_mask=torch.zeros(3, 3, dtype=torch.bool)),
    "bool or float": of_layer(attn_mask=torch.zeros(7, 7, dtype=torch.int32)),
    r"key must be \[N, S, kdim\] = \[2, S, 12\]": lambda: LAYER(TOKENS, TOKENS[0], TOKENS),
    r"query must be \[N, L, E\] = \[2, 7, 12\]": lambda: LAYER(TOKENS[..., :4], TOKENS, TOKENS),
    r"value must be \[N, S, vdim\] = \[2, 7, 12\]": lambda: LAYER(TOKENS, TOKENS, TOKENS[:, :3]),
    "must have the same number of heads": packed(k=P[1][:, :2], v=P[2][:, :2]),
    "must divide": packed(k=P[1][:, :3], v=P[2][:, :3], enable_gqa=True),
    r"query must be \[tokens, heads, width\]": packed(q=P[0][None]),
    r"value must be \[keys, kv_heads, v_width\]": packed(v=P[2][1:]),
    "must start with 0": packed(cu_q=CU + 1),
    "end at no more than 9 tokens": packed(cu_k=CU * 2),
    "max_q must be the longest": packed(most=4),
    r"cu_seq_k must be \[N\+1\] = \[3\]": packed(cu_k=CU[:2]),
    "cu_seq_q must be int32": packed(cu_q=CU.float()),
    "cu_seq_k must be given": packed(cu_k=None),
    "seqused_k must be from 0": packed(seqused_k=USED + 1),
    "block_table needs seqused_k": packed(k=P[1][None], v=P[2][None], block_table=torch.zeros(2, 1, dtype=torch.int32)),
    "window_size must be two counts": packed(window_size=(-2, 0)),
    "window_size must be two counts.*got None": packed(window_size=None),
    "window_size must be two counts.*got .True": packed(window_size=(True, False)),
    "dropout_p must be from 0 to 1: got None": lambda: sdpa(X, X, X, dropout_p=None),
    "CPU's memory": packed(q=P[0].to("meta")),
    "query must be": of_latent(0, LATENT[0][0]),
    r"key_rope must be \[B, Tk, Dr\]": of_latent(1, LATENT[1][:, 1:]),
    "kv_b_weight": of_latent(3, LATENT[3][1:]),
    "more than H Dn": of_latent(3, LATENT[3][: 3 * 3]),
    "Dn > 0": of_latent(0, LATENT[0][..., :2]),
    "form must be": of_latent(form="best"),
    "broadcast": lambda: latent(*LATENT, torch.ones(2, 19)),
    r"g must be \[B, T, Hv, K\] = \[2, 4, 4, 8\]: got \[2, 4, 4\]": lambda: qt.recurrent_kimi_delta_attention(*SCAN[:5]),
    r"multiple.*\[2, 4, 3, 8\]": of_delta(*changed(2, SCAN[2][:, :, :3])),
    r"g must be \[B, T, Hv\] = \[2, 4, 4\]: got \[2, 4, 2\]": of_delta(*changed(3, SCAN[3][..., :2])),
    r"initial_state must be .*\[2, 4, 8, 8\]: got \[1, 4, 8, 8\]": of_delta(initial_state=SCAN[5][:1]),
    "B = 1": of_delta(cu_seqlens=torch.tensor([0, 4])),
    r"end at 4 tokens: got \[0, 5\]": of_delta(*ONE, cu_seqlens=torch.tensor([0, 5])),
    r"cu_seqlens must be \[N \+ 1\] of int32 or int64": of_delta(*ONE, cu_seqlens=torch.tensor(4)),
    r"cu_seqlens must be \[N \+ 1\] of int32 or int64: ": of_delta(*ONE, cu_seqlens=torch.tensor([0.0, 4.0])),
}
TYPES: dict[str, Callable[[], Any]] = {
    "cast them": lambda: sdpa(X, X.double(), X),
    r"cast them, x.to\(torch.float32\)": lambda: sdpa(X.int(), X, X),
    "query must be a torch.Tensor: got ndarray; torch.as_tensor makes one": lambda: sdpa(X.numpy(), X, X),
    "key must be a torch.Tensor": lambda: sdpa(X, X.numpy(), X),
    "key must be a torch.Tensor: got list": lambda: sdpa(X, [1.0], X),
    "value must be a torch.Tensor: got NoneType": lambda: sdpa(X, X, None),
    "latent must be a torch.Tensor: got NoneType": lambda: latent(LATENT[0], None, *LATENT[2:]),
    "k must be a torch.Tensor: got list": of_delta(*changed(1, [1.0])),
    "cu_seqlens must be a torch.Tensor: got list": of_delta(*ONE, cu_seqlens=[0, 4]),
    "dt must be a torch.Tensor: got NoneType": lambda: qt.selective_scan(TOKENS, None, *SCAN[:3]),
    "A must be a torch.Tensor: got list": lambda: qt.selective_scan(TOKENS, TOKENS, [1.0], *SCAN[:2]),
    "weight must be a torch.Tensor: got NoneType": lambda: qt.short_convolution(TOKENS, None),
    "sequence must be a torch.Tensor: got list": lambda: qt.short_convolution(TOKENS, TOKENS[0, :4].T, sequence=[0]),
    "attn_mask must be a torch.Tensor: got ndarray": lambda: sdpa(X, X, X, torch.ones(5, 5).bool().numpy()),
    "is_causal must be True or False: got 1": lambda: sdpa(X, X, X, is_causal=1),
    "is_causal must be True or False: got 'bottom_right'.*causal_lower_right": lambda: sdpa(X, X, X, is_causal="bottom_right"),
    r"\[flex_attention\] value must be a torch.Tensor": lambda: flex(Q, K, V.numpy(), enable_gqa=True),
    "return_aux must be an AuxRequest": packed(return_aux=True),
    r"\[flex_attention\] return_aux must be": lambda: flex(Q, K, V, enable_gqa=True, return_aux=True),
    "cu_seq_q must be a torch.Tensor: got list": packed(cu_q=[0, 5, 9]),
    "seqused_k must be a torch.Tensor": packed(seqused_k=[5, 4]),
    "alibi_slopes must be a torch.Tensor": packed(alibi_slopes=[1.0]),
    "alibi_slopes must hold real numbers: got complex64": packed(alibi_slopes=torch.ones(4) + 0j),
    "sinks must hold real numbers: got complex64": packed(sinks=torch.ones(4) + 0j),
    "max_q must be a whole number: got 5.5": packed(most=5.5),  # type: ignore[arg-type]
    "g must hold real numbers: got complex128": of_delta(*changed(3, SCAN[3] + 0j)),
    "beta must hold real numbers: got bool": of_delta(*changed(4, SCAN[4] > 0)),
    "float32": lambda: sdpa(X.int(), X.int(), X.int()),
    "attn_mask must be bool": lambda: sdpa(X, X, X, attn_mask=torch.ones(5, 5, dtype=torch.int32)),
    "score_mod must be": lambda: flex(Q, K, V, 3, enable_gqa=True),
    "score_mod must be .*got str": lambda: flex(Q, K, V, "causal", enable_gqa=True),
    "module must be a torch.nn.MultiheadAttention: got Linear": lambda: qt.MultiheadAttention.from_torch(nn.Linear(2, 2)),
    "block_mask must be": lambda: flex(Q, K, V, block_mask=torch.ones(7, 7), enable_gqa=True),
    "cast them ": packed(q=P[0].double()),
    "one element type": of_latent(1, LATENT[1].double()),
    "gk is not computed here": lambda: qt.fused_recurrent_gated_delta_rule(*SCAN[:5], gk=SCAN[0]),
    r"beta must be a tensor \[B, T, Hv\]: got None": lambda: qt.fused_recurrent_gated_delta_rule(*SCAN[:4], None),
    "use_gate_in_kernel is not computed here": lambda: qt.chunk_kimi_delta_attention(*SCAN[:5], use_gate_in_kernel=True),
    "float32, k float64": of_delta(*changed(0, SCAN[0].float())),
    "one element type ": of_delta(*(x.float() for x in SCAN[:2]), SCAN[2].bfloat16(), *(x.float() for x in SCAN[3:5])),
}
BOTH = [(words, call, ValueError) for words, call in VALUES.items()] + [(words, call, TypeError) for words, call in TYPES.items()]


@pytest.mark.parametrize(("words", "call", "kind"), BOTH, ids=[words for words, *_ in BOTH])
def test_arguments_that_do_not_fit(words: str, call: Callable[[], Any], kind: type[Exception]) -> None:
    for caught in (kind, RuntimeError) if words in VALUES or "cast" in words else (kind,):
        with pytest.raises(caught, match=words.rstrip(" :")):
            call()


def test_what_fla_and_transformers_pass_beside() -> None:
    expected = delta(*ONE, cu_seqlens=torch.tensor([0, 1, 4]))[0]
    assert torch.equal(delta(*ONE, cu_seq_lens_q=torch.tensor([0, 1, 4]))[0], expected)  # transformers' name of it
    delta(*SCAN[:5], gk=None, head_first=False, position_ids=SCAN[3], chunk_size=64)  # ask for nothing else


def test_dropout_under_vmap_is_refused() -> None:
    layer = qt.MultiheadAttention(12, 3, dropout=0.5, batch_first=True).train()
    for call, given in (
        (lambda q: sdpa(q, q, q, dropout_p=0.5), X[:, None]),
        (lambda x: layer(x, x, x, need_weights=False)[0], TOKENS[:, None]),
    ):
        with pytest.raises(NotImplementedError, match="vmap over attention with dropout is not computed"):
            torch.func.vmap(call, randomness="different")(given)


def test_scripting_is_refused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dropout=0.0)
    with qt.enable(), pytest.raises(Exception, match="keyword-only arguments with defaults"):
        torch.jit.script(layer)
    with pytest.raises(RuntimeError):
        torch.jit.script(qt.MultiheadAttention(8, 2))
