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

from store import Case

VERSION = "5.23.0"
HALF, INTERLEAVED = "half", "interleaved"


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


def rotate_pairs(t, layout, width):
    """(-second, first) of each pair within the first `width` columns, 0 beyond."""
    turned = np.zeros_like(t)
    half = width // 2
    first, second = (slice(0, half), slice(half, width)) if layout == HALF else (slice(0, width, 2), slice(1, width, 2))
    turned[..., first], turned[..., second] = -t[..., second], t[..., first]
    return turned


class Grouped:
    """What the positive terms of a grouped layer are computed from: its parameters, cos and sin, all in f64."""

    def __init__(self, parameters, heads, kv_heads, cos, sin, layout, width, eps):
        self.parameters, self.heads, self.kv_heads, self.eps = parameters, heads, kv_heads, eps
        self.cos, self.sin, self.layout, self.width = cos, sin, layout, width  # [B or 1, 1, T, D], 1 and 0 beyond width

    def split(self, t, heads):
        return t.reshape(*t.shape[:2], heads, -1).swapaxes(1, 2)

    def project(self, x, name):
        bias = self.parameters.get(name + ".bias", 0.0)
        return x @ self.parameters[name + ".weight"].T + bias

    def normed(self, raw, name):
        """raw [B, T, heads * D] with its norm applied, where it has one."""
        weight = self.parameters.get(name + ".weight")
        if weight is None:
            return raw
        rows = raw.reshape(*raw.shape[:2], -1, weight.size)
        return (rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + self.eps) * weight).reshape(raw.shape)

    def turned(self, t):
        return t * self.cos + rotate_pairs(t, self.layout, self.width) * self.sin

    def turned_back(self, terms):
        """Positive terms of the gradient before the rotation."""
        return terms * np.abs(self.cos) + np.abs(rotate_pairs(terms * np.abs(self.sin), self.layout, self.width))

    def unnormed(self, terms, raw, name):
        """Positive terms [B, T, heads * D] of the gradient before the norm, and of its weight."""
        weight = self.parameters.get(name + ".weight")
        if weight is None:
            return terms, None
        rows, gradient = (t.reshape(*t.shape[:2], -1, weight.size) for t in (raw, terms))
        inverse = 1 / np.sqrt(np.square(rows).mean(-1, keepdims=True) + self.eps)
        normal = np.abs(rows * inverse)
        scaled = gradient * np.abs(weight)
        back = inverse * (scaled + normal * (scaled * normal).mean(-1, keepdims=True))
        return back.reshape(terms.shape), (gradient * normal).sum((0, 1, 2))


def positive_terms(layer, x, dout, weights):
    """As terms.positive_terms, for grouped heads, norms and rotation."""
    p, heads, kv_heads = layer.parameters, layer.heads, layer.kv_heads
    group = heads // kv_heads
    raw = {name: layer.project(x, name + "_proj") for name in "qkv"}
    heads_of = {"q": heads, "k": kv_heads, "v": kv_heads}
    q, k = (layer.turned(layer.split(layer.normed(raw[n], n + "_norm"), heads_of[n])) for n in "qk")
    v = layer.split(raw["v"], kv_heads)
    q, k, v = np.abs(q), np.abs(k.repeat(group, 1)), np.abs(v.repeat(group, 1))
    scale = q.shape[-1] ** -0.5
    batch, length, _ = x.shape

    def join(t):
        return t.swapaxes(1, 2).reshape(batch, length, -1)

    def summed(t):  # over the heads of a group
        return t.reshape(batch, kv_heads, group, length, -1).sum(2)

    scores = scale * q @ k.swapaxes(-1, -2)
    spread = weights * (1 + scores + (weights * scores).sum(-1, keepdims=True))
    joined = join(spread @ v)
    matrix = p["o_proj.weight"]
    result = {"weights": spread, "out": joined @ np.abs(matrix).T + np.abs(p.get("o_proj.bias", 0.0)),
              "grad.o_proj.weight": np.einsum("bto,bti->oi", np.abs(dout), joined)}
    if "o_proj.bias" in p:
        result["grad.o_proj.bias"] = np.abs(dout).sum((0, 1))
    dattended = np.abs(layer.split(dout @ matrix, heads))
    through = dattended @ v.swapaxes(-1, -2)
    dscores = spread * (through + (weights * through).sum(-1, keepdims=True))
    gradients = {"q": layer.turned_back(scale * dscores @ k),
                 "k": layer.turned_back(summed(scale * dscores.swapaxes(-1, -2) @ q)),
                 "v": summed(spread.swapaxes(-1, -2) @ dattended)}
    result["grad.x"] = 0.0
    for name, terms in gradients.items():
        terms, dnorm = layer.unnormed(join(terms), raw[name], name + "_norm")
        if dnorm is not None:
            result[f"grad.{name}_norm.weight"] = dnorm
        result[f"grad.{name}_proj.weight"] = np.einsum("bto,bti->oi", terms, np.abs(x))
        if name + "_proj.bias" in p:
            result[f"grad.{name}_proj.bias"] = terms.sum((0, 1))
        result["grad.x"] = result["grad.x"] + terms @ np.abs(p[f"{name}_proj.weight"])
    return result


def run(make, dtype, x, parameters, dout, call):
    """out, weights and gradients of sum(out * dout) as f64 arrays. call(module, x) gives (out, weights)."""
    with everything_in(dtype) if dtype == torch.float64 else contextlib.nullcontext():
        module = make().to(dtype).eval()
        own = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in parameters.items():
                own[name].copy_(torch.from_numpy(value))
        leaf = torch.from_numpy(x).to(dtype).requires_grad_()
        out, weights = call(module, leaf)
        out.backward(torch.from_numpy(dout).to(dtype))
    results = {"out": out, "weights": weights, "grad.x": leaf.grad}
    results.update({"grad." + name: own[name].grad for name in parameters})
    return {name: value.detach().double().numpy() for name, value in results.items()}


def store(case, exact, rounded, terms, renamed=None):
    for name, value in exact.items():
        name_in_file = (renamed or {}).get(name, name)
        case.result(name_in_file, value, rounded[name], terms.get(name_in_file, np.abs(value)))


def draw_parameters(case, module, exponent=-1):
    return {name: case.input("param." + name, tuple(value.shape), exponent) for name, value in module.named_parameters()}


def grouped_case(name, model, sizes, *, heads, kv_heads, head_dim, offset=0, keep=None, rope=None, rope_text="", base=10000.0,
                 config_options=None):
    """rope: Hugging Face's rope_parameters beside rope_theta; rope_text: the same for `qkv layer --rope`."""
    import transformers

    code = model_code(model)
    kind = {"llama": "Llama", "qwen3": "Qwen3", "olmo2": "Olmo2", "stablelm": "StableLm"}[model]
    batch, length, embed_dim = sizes
    config = getattr(transformers, kind + "Config")(
        hidden_size=embed_dim, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        num_hidden_layers=1, vocab_size=8, intermediate_size=8, max_position_embeddings=(rope or {}).get("max", 64),
        rope_parameters={"rope_type": "default", "rope_theta": base, **{k: v for k, v in (rope or {}).items() if k != "max"}},
        **(config_options or {}))
    config._attn_implementation = "eager"
    case = Case(name, kind="grouped", heads=heads, kv_heads=kv_heads, rope=f"base={base:g}" + rope_text + f",offset={offset}",
                norm_eps=getattr(config, "rms_norm_eps", 0), torch=torch.__version__, transformers=transformers.__version__)
    attention = getattr(code, kind + "Attention")
    parameters = draw_parameters(case, attention(config, 0))
    x, dout = case.input("x", sizes), case.input("dout", sizes)
    if keep is not None:
        case.add("mask", keep)
    positions = torch.arange(offset, offset + length)[None].expand(batch, -1)
    angles = {}

    def call(module, leaf):
        cos, sin = getattr(code, kind + "RotaryEmbedding")(config)(leaf, positions)
        angles[leaf.dtype] = cos.double().numpy(), sin.double().numpy()
        return module(leaf, position_embeddings=(cos, sin), attention_mask=causal_mask(length, leaf.dtype, keep))

    exact, rounded = (run(lambda: attention(config, 0), dtype, x, parameters, dout, call)
                      for dtype in (torch.float64, torch.float32))
    cos, sin = angles[torch.float64]
    turned = cos.shape[-1]  # rotated columns; the rest of a head is unchanged
    cos, sin = (np.concatenate([t, np.full((*t.shape[:2], head_dim - turned), rest)], -1)[:, None]
                for t, rest in ((cos, 1.0), (sin, 0.0)))
    layer = Grouped(parameters, heads, kv_heads, cos, sin, HALF, turned, getattr(config, "rms_norm_eps", 0))
    store(case, exact, rounded, positive_terms(layer, x, dout, exact["weights"]))
    return case


def partial_case(name, sizes, *, heads, rotary_dim):
    """GPT-J: pairs are adjacent columns, only the first rotary_dim columns of a head, names q_proj ... out_proj."""
    import transformers

    code = model_code("gptj")
    batch, length, embed_dim = sizes
    config = transformers.GPTJConfig(n_embd=embed_dim, n_head=heads, n_positions=64, rotary_dim=rotary_dim, n_layer=1,
                                     vocab_size=8, attn_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "eager"
    case = Case(name, kind="grouped", heads=heads, kv_heads=heads, rope=f"dim={rotary_dim},layout={INTERLEAVED},offset=2",
                norm_eps=1e-6, torch=torch.__version__, transformers=transformers.__version__)
    with torch.no_grad():
        parameters = draw_parameters(case, code.GPTJAttention(config, 0))
    x, dout = case.input("x", sizes), case.input("dout", sizes)
    positions = torch.arange(2, 2 + length)[None].expand(batch, -1)

    def call(module, leaf):
        with torch.no_grad():  # the module's table of sines is f32; here it has the type of x
            frequency = 10000.0 ** (-torch.arange(0, rotary_dim, 2, dtype=leaf.dtype) / rotary_dim)
            angle = torch.arange(64, dtype=leaf.dtype)[:, None] * frequency
            module.embed_positions = torch.cat((angle.sin(), angle.cos()), dim=1)
        out, weights = module(leaf, attention_mask=causal_mask(length, leaf.dtype), position_ids=positions)[:2]
        return out, weights

    exact, rounded = (run(lambda: code.GPTJAttention(config, 0), dtype, x, parameters, dout, call)
                      for dtype in (torch.float64, torch.float32))
    angle = positions.double().numpy()[..., None] * 10000.0 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    rest = embed_dim // heads - rotary_dim
    cos = np.concatenate([np.cos(angle).repeat(2, -1), np.ones((batch, length, rest))], -1)[:, None]
    sin = np.concatenate([np.sin(angle).repeat(2, -1), np.zeros((batch, length, rest))], -1)[:, None]
    named = {key.replace("out_proj", "o_proj"): value for key, value in parameters.items()}
    layer = Grouped(named, heads, heads, cos, sin, INTERLEAVED, rotary_dim, 0)
    terms = positive_terms(layer, x, dout, exact["weights"])
    store(case, exact, rounded, {key.replace("o_proj", "out_proj"): value for key, value in terms.items()})
    return case


def bert_case():
    """BertAttention as `mha`, without the residual sum and the norm that follow its output projection."""
    import transformers

    import terms

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
    store(case, exact, rounded, terms.positive_terms(x, ours, dout, exact["weights"], None, None, 2), renamed)
    return case


def cases():
    import transformers

    if transformers.__version__ != VERSION:
        raise SystemExit(f"the golden files are made with transformers {VERSION}: got {transformers.__version__}")
    small = {"heads": 4, "kv_heads": 2, "head_dim": 6}
    padded = np.array([[1] * 7, [1] * 4 + [0] * 3], dtype=np.uint8)
    yield grouped_case("hf_llama", "llama", (2, 7, 24), **small, keep=padded)
    wide = {"heads": 2, "kv_heads": 1, "head_dim": 16}
    # Trained on 8 tokens, used on 24: factor 2 * 24 / 8 - (2 - 1) = 5
    yield grouped_case("hf_llama_dynamic", "llama", (1, 24, 20), **wide,
                       rope={"rope_type": "dynamic", "factor": 2.0, "max": 8}, rope_text=",scaling=ntk,factor=5")
    yield grouped_case("hf_llama_yarn", "llama", (1, 12, 20), **wide, offset=50,
                       rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "max": 16384},
                       rope_text=",scaling=yarn,factor=4,context=4096")
    yield grouped_case("hf_llama_llama3", "llama", (1, 12, 20), **wide, offset=50, base=500000.0,
                       rope={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 64, "max": 512},
                       rope_text=",scaling=llama3,factor=8,context=64")
    yield grouped_case("hf_qwen3", "qwen3", (2, 6, 20), heads=4, kv_heads=2, head_dim=8, base=1000000.0)
    yield grouped_case("hf_olmo2", "olmo2", (2, 6, 24), **small, base=500000.0)
    yield grouped_case("hf_stablelm", "stablelm", (2, 6, 32), heads=4, kv_heads=2, head_dim=8, offset=9,
                       rope={"partial_rotary_factor": 0.5}, rope_text=",dim=4", config_options={"use_qkv_bias": True})
    yield partial_case("hf_gptj", (2, 6, 24), heads=2, rotary_dim=8)
    yield bert_case()
