"""Golden files from Hugging Face's own attention modules with random weights: Llama with its rotary scalings, Qwen 3,
OLMo 2, StableLM and GPT-J (partial rotation) for GroupedQueryAttention; BERT for MultiHeadAttention.

    pip install transformers==5.23.0        (beside torch; nothing is downloaded: the modules are made from configurations)

These modules compute frequencies, angles, norms and softmax in f32 whatever their parameters are. For the exact results the
same code runs with the names torch.float and torch.float32 bound to f64.
"""

import contextlib
import importlib

import numpy as np
import torch

import store
from store import Case
from terms import Rotation, positive_terms

VERSION = "5.23.0"


@contextlib.contextmanager
def everything_in(dtype):
    """Inside the context torch.float, torch.float32 and Tensor.float() mean `dtype`."""
    saved = torch.float, torch.float32, torch.Tensor.float
    torch.float = torch.float32 = dtype
    torch.Tensor.float = lambda tensor: tensor.to(dtype)
    try:
        yield
    finally:
        torch.float, torch.float32, torch.Tensor.float = saved


def model_code(name):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def causal_mask(length, dtype, keep=None):
    """Additive [1 or B, 1, T, T]."""
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    if keep is not None:
        mask = mask & torch.from_numpy(keep.astype(bool))[:, None, None]
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def run(make, dtype, x, parameters, dout, call):
    with everything_in(dtype) if dtype == torch.float64 else contextlib.nullcontext():
        return store.run(make(), dtype, x, parameters, dout, call)


def add_results(case, exact, rounded, terms, renamed=None):
    for name, value in exact.items():
        name_in_file = (renamed or {}).get(name, name)
        case.result(name_in_file, value, rounded[name], terms.get(name_in_file, np.abs(value)))


def draw_parameters(case, module, exponent=-1):
    return {name: case.input("param." + name, tuple(value.shape), exponent) for name, value in module.named_parameters()}


def grouped_case(name, make, sizes, call, angles, *, heads, kv_heads, head_dim, rope, norm_eps, keep=None, interleaved=False):
    """make() is the module, call(module, x) gives (out, weights); angles: filled by calls, cos and sin [B, T, D'] by type."""
    import transformers

    case = Case(name, kind="grouped", heads=heads, kv_heads=kv_heads, rope=rope, norm_eps=norm_eps, torch=torch.__version__,
                transformers=transformers.__version__)
    parameters = draw_parameters(case, make())
    x, dout = case.input("x", sizes), case.input("dout", sizes)
    if keep is not None:
        case.add("mask", keep)
    exact, rounded = (run(make, dtype, x, parameters, dout, call) for dtype in (torch.float64, torch.float32))
    width = angles[torch.float64][0].shape[-1]  # rotated columns; the rest of a head is unchanged
    cos, sin = (np.concatenate([t, np.full((*t.shape[:2], head_dim - width), rest)], -1)[:, None]
                for t, rest in zip(angles[torch.float64], (1.0, 0.0)))
    rotation = Rotation(cos, sin, width, interleaved)
    add_results(case, exact, rounded, positive_terms(x, parameters, dout, exact["weights"], heads, kv_heads, rotation=rotation,
                                               eps=norm_eps))
    return case


def llama_case(name, model, sizes, *, heads, kv_heads, head_dim, offset=0, keep=None, rope=None, rope_text="", base=10000.0,
               config_options=None):
    """rope: Hugging Face's rope_parameters beside rope_theta; rope_text: the same for `qkv layer --rope`."""
    import transformers

    code, (batch, length, embed_dim) = model_code(model), sizes
    kind = {"llama": "Llama", "qwen3": "Qwen3", "olmo2": "Olmo2", "stablelm": "StableLm"}[model]
    config = getattr(transformers, kind + "Config")(
        hidden_size=embed_dim, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        num_hidden_layers=1, vocab_size=8, intermediate_size=8, max_position_embeddings=(rope or {}).get("max", 64),
        rope_parameters={"rope_type": "default", "rope_theta": base, **{k: v for k, v in (rope or {}).items() if k != "max"}},
        **(config_options or {}))
    config._attn_implementation = "eager"
    positions, angles = torch.arange(offset, offset + length)[None].expand(batch, -1), {}

    def call(module, leaf):
        cos, sin = getattr(code, kind + "RotaryEmbedding")(config)(leaf, positions)
        angles[leaf.dtype] = cos.double().numpy(), sin.double().numpy()
        return module(leaf, position_embeddings=(cos, sin), attention_mask=causal_mask(length, leaf.dtype, keep))

    return grouped_case(name, lambda: getattr(code, kind + "Attention")(config, 0), sizes, call, angles, heads=heads,
                        kv_heads=kv_heads, head_dim=head_dim, rope=f"base={base:g}" + rope_text + f",offset={offset}",
                        norm_eps=getattr(config, "rms_norm_eps", 0), keep=keep)


def gptj_case(name, sizes, *, heads, rotary_dim):
    """GPT-J: pairs are adjacent columns, only the first rotary_dim columns of a head, names q_proj ... out_proj."""
    import transformers

    code, (batch, length, embed_dim) = model_code("gptj"), sizes
    config = transformers.GPTJConfig(n_embd=embed_dim, n_head=heads, n_positions=64, rotary_dim=rotary_dim, n_layer=1,
                                     vocab_size=8, attn_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "eager"
    positions, angles = torch.arange(2, 2 + length)[None].expand(batch, -1), {}

    def call(module, leaf):
        with torch.no_grad():  # the module's table of sines is f32; here it has the type of x
            frequency = 10000.0 ** (-torch.arange(0, rotary_dim, 2, dtype=leaf.dtype) / rotary_dim)
            angle = torch.arange(64, dtype=leaf.dtype)[:, None] * frequency
            module.embed_positions = torch.cat((angle.sin(), angle.cos()), dim=1)
        angle = positions.double().numpy()[..., None] * 10000.0 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
        angles[leaf.dtype] = np.cos(angle).repeat(2, -1), np.sin(angle).repeat(2, -1)
        return module(leaf, attention_mask=causal_mask(length, leaf.dtype), position_ids=positions)[:2]

    return grouped_case(name, lambda: code.GPTJAttention(config, 0), sizes, call, angles, heads=heads, kv_heads=heads,
                        head_dim=embed_dim // heads, rope=f"dim={rotary_dim},layout=interleaved,offset=2", norm_eps=1e-6,
                        interleaved=True)


def bert_case():
    """BertAttention as `mha`, without the residual sum and the norm that follow its output projection."""
    import transformers

    code = model_code("bert")
    config = transformers.BertConfig(hidden_size=12, num_attention_heads=2, num_hidden_layers=1, vocab_size=8)
    config._attn_implementation = "eager"

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = code.BertSelfAttention(config)
            self.dense = code.BertSelfOutput(config).dense

    def call(module, leaf):
        attended, weights = module.attention(leaf)
        return module.dense(attended), weights

    case = Case("hf_bert", kind="layer", layer="mha", heads=2, fill="-1e20", causal=0, mask_axes="none", dropout=0.0,
                residual=0.0, seed=0, mode="eval", torch=torch.__version__, transformers=transformers.__version__)
    sizes = (2, 5, 12)
    x, ours, theirs, renamed = case.input("x", sizes), {}, {}, {}
    for here, there in (("query_proj", "attention.query"), ("key_proj", "attention.key"), ("value_proj", "attention.value"),
                        ("output_proj", "dense")):
        for part, shape in (("weight", (12, 12)), ("bias", (12,))):
            name = f"{here}.{part}"
            ours[name] = theirs[f"{there}.{part}"] = case.input("param." + name, shape, -1)
            renamed[f"grad.{there}.{part}"] = "grad." + name
    dout = case.input("dout", sizes)
    exact, rounded = (run(Attention, dtype, x, theirs, dout, call) for dtype in (torch.float64, torch.float32))
    add_results(case, exact, rounded, positive_terms(x, ours, dout, exact["weights"], 2), renamed)
    return case


def cases():
    import transformers

    if transformers.__version__ != VERSION:
        raise SystemExit(f"the golden files are made with transformers {VERSION}: got {transformers.__version__}")
    small = {"heads": 4, "kv_heads": 2, "head_dim": 6}
    padded = np.array([[1] * 7, [1] * 4 + [0] * 3], dtype=np.uint8)
    yield llama_case("hf_llama", "llama", (2, 7, 24), **small, keep=padded)
    wide = {"heads": 2, "kv_heads": 1, "head_dim": 16}
    # Trained on 8 tokens, used on 24: factor 2 * 24 / 8 - (2 - 1) = 5
    yield llama_case("hf_llama_dynamic", "llama", (1, 24, 20), **wide,
                     rope={"rope_type": "dynamic", "factor": 2.0, "max": 8}, rope_text=",scaling=ntk,factor=5")
    yield llama_case("hf_llama_yarn", "llama", (1, 12, 20), **wide, offset=50,
                     rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "max": 16384},
                     rope_text=",scaling=yarn,factor=4,context=4096")
    yield llama_case("hf_llama_llama3", "llama", (1, 12, 20), **wide, offset=50, base=500000.0,
                     rope={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 64, "max": 512},
                     rope_text=",scaling=llama3,factor=8,context=64")
    yield llama_case("hf_qwen3", "qwen3", (2, 6, 20), heads=4, kv_heads=2, head_dim=8, base=1000000.0)
    yield llama_case("hf_olmo2", "olmo2", (2, 6, 24), **small, base=500000.0)
    yield llama_case("hf_stablelm", "stablelm", (2, 6, 32), heads=4, kv_heads=2, head_dim=8, offset=9,
                     rope={"partial_rotary_factor": 0.5}, rope_text=",dim=4", config_options={"use_qkv_bias": True})
    yield gptj_case("hf_gptj", (2, 6, 24), heads=2, rotary_dim=8)
    yield bert_case()
