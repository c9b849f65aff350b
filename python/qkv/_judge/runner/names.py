"""What names mean: of parameters, of arguments of calls and of constructors, in English and Chinese.

Names are compared as keys: lower case without `_` and `.`, Chinese words put into English. Not: shapes (matching.py).
"""

from __future__ import annotations

import re

_CHINESE = (
    ("注意力头数", "heads"), ("注意力头", "heads"), ("键值头数", "kvheads"), ("头维度", "headdim"),
    ("头的数量", "heads"), ("头数", "heads"), ("多头", "multihead"),
    ("单头", "singlehead"), ("头", "heads"), ("自注意力", "selfattention"), ("因果", "causal"),
    ("交叉", "cross"), ("分组查询", "groupedquery"), ("缩放点积", "scaleddotproduct"),
    ("线性注意力", "linearattention"), ("旋转", "rotary"), ("缓存", "cache"), ("反向", "backward"),
    ("分块", "flash"), ("注意力", "attention"), ("查询", "query"), ("键", "key"), ("值", "value"),
    ("输出", "out"), ("输入", "input"), ("隐藏状态", "hiddenstates"), ("掩码", "mask"), ("遮罩", "mask"),
    ("偏置", "bias"), ("权重", "weight"), ("矩阵", ""), ("投影", "proj"), ("线性层", "linear"),
    ("线性", "linear"), ("变换", "proj"), ("层", "layer"), ("隐藏维度", "hiddendim"), ("嵌入维度", "embeddim"),
    ("模型维度", "dmodel"), ("维度", "dim"), ("维", "dim"), ("丢弃率", "dropout"), ("丢弃", "dropout"),
    ("随机失活", "dropout"), ("记忆", "memory"), ("上下文", "context"), ("位置", "positions"),
    ("块大小", "blocksize"), ("训练", "training"), ("学习率", "lr"), ("参数", "params"), ("词元", "tokens"),
    ("序列", "sequence"), ("的", ""),
)  # fmt: skip

_BEFORE = r"(?:to|w|weights?|linear|lin|fc|proj|projection|layer|dense|mat|matrix|wt|multihead|self|my)?"
_AFTER = r"(?:proj|projection|projector|linear|lin|layer|weights?|w|s|fc|dense|net|mat|matrix|transform|map|mapping|kernel)*"
_LETTERS = {
    ("q",): r"q|query|queries",
    ("k",): r"k|key|keys",
    ("v",): r"v|val|value|values",
    ("k", "v"): r"kv|keyvalue",
    ("q", "k", "v"): r"qkv|cattn|in|inp|input|packed|querykeyvalue|fused|attn|all|three|combined|kqv|qvk|inproj",
    ("o",): r"o|out|output|cproj|unifyheads|unify|merge|combine|final|last|fc|concat|result",
}
_WEIGHT = [(letters, re.compile(f"^{_BEFORE}(?:{names}){_AFTER}$")) for letters, names in _LETTERS.items()]
_BIAS = [
    (letters, re.compile(f"^(?:b|bias)(?:{names}){_AFTER}$|^{_BEFORE}(?:{names}){_AFTER}(?:b|bias)$"))
    for letters, names in _LETTERS.items()
]


def _table(text: str) -> dict[str, str]:
    """{word: meaning} of lines "meaning: words"; a word that two meanings have is the first one's."""
    found: dict[str, str] = {}
    meaning = ""
    for line in text.strip().splitlines():
        head, colon, words = line.partition(":")
        meaning, words = (head.strip(), words) if colon else (meaning, line)
        for word in words.split():
            found.setdefault(word, meaning)
    return found


_ROLE = _table("""
    x: x input inputs inp hidden hiddenstates hiddenstate embeddings embedding embedded emb seq sequence src data tensor
        xq inputseq inputtensor
    q: q query queries qs
    k: k key keys ks
    v: v value values val vals vs
    mask: mask allowed keep visible m
        maskpad maskout masks bias attnbias attentionbias pad padding ispad ispadding lengths lens seqlens validlen
        validlens keylengths kvlengths
    memory: memory mem context ctx encoderoutput encoderoutputs encoderhiddenstates encout encoded kv source cond other
        keyvalue keyvaluestates xkv y encoder crossinput x2 kvinput inputkv
    num_heads: numheads nheads numshead headnum heads h nhead numhead nh headcount headsnum headnums nhd
        numattentionheads nattnheads attentionheads
    num_kv_heads: numkvheads nkvheads kvheads numkeyvalueheads nkvhead numskvhead kvheadnum numgroups ngroups groups
        numkvgroups numquerygroups hkv kvh numkvhead kvheadsnum
    positions: positions pos position positionids posids idx
    base: base theta ropebase ropetheta freqbase
    block_size: blocksize block tile tilesize chunk chunksize bs br bc blockq blockk blockm blockn qblock kblock brows
        bcols blocksizeq blocksizek blockrow blockcol
    causal: causal iscausal usecausal masked causalmasked
    p: p dropout dropoutp dropoutrate droprate pdrop rate prob dropoutprob attndropout
    training: training train istraining
    dout: dout do gradoutput gradout grad dy doutput upstream g dzout upstreamgrad outgrad
    use_cache: usecache
    cache: cache kvcache past pastkv pastkeyvalue pastkeyvalues state layerpast
    start: startpos start offset cacheposition cachepos
    past_k: pastk kcache cachek keycache cachekeys pastkey
    past_v: pastv vcache cachev valuecache cachevalues pastvalue
    lr: lr learningrate eta alpha stepsize
    params: params parameters p weights state statedict
    tokens: tokens ids inputids batch tokenids idx data
    model: model net lm
    optimizer: optimizer optim opt
""")

_SETTING = _table("""
    embed: embeddim dim dmodel hiddendim nembd hiddensize embdim din inputdim indim infeatures dimin embeddingdim
        modeldim width channels c d e embedsize emb nembed dimmodel features querydim inchannels modelsize dimembed
        inputsize edim hidden embed embeddingsize ninp units attndim attentiondim inputdimension dimension dims
        hiddenunits dinput inputfeatures contextdim kdim vdim qdim memorydim doutput outdim outfeatures dimout outputdim
        dout
    heads: numheads nheads numshead headnum heads h nhead numhead nh headcount headsnum headnums nhd numattentionheads
        nattnheads attentionheads nheadsq nqheads numqheads numqueryheads
    kv_heads: numkvheads nkvheads kvheads numkeyvalueheads nkvhead numskvhead kvheadnum numgroups ngroups groups
        numkvgroups numquerygroups hkv kvh numkvhead kvheadsnum
    head_dim: dk headdim dhead headsize dimhead dv dq dh keydim dimk dimv dimkey valuedim dkey dvalue dimperhead depth
        headwidth hdim dattn innerdimhead
    dropout: dropout dropoutrate attndropout p dropoutp droprate pdrop attentiondropout dropoutprob attnpdrop
        attnprobsdropoutprob rate attentionprobsdropoutprob hiddendropoutprob residdropout residpdrop dropprob
        attdropout drop projdrop attndrop prob
    causal: causal iscausal usecausal masked causalmasked
    bias: bias qkvbias usebias attentionbias outbias projbias
    context: maxlen blocksize contextlen contextlength maxseqlen seqlen t ctx nctx ctxlen maxlength maxposition
        maxpositions maxpositionembeddings context maxt length maxcontext nctxmax maxseqlength sequencelength maxtokens
        blocklen seqlength maxcachelen capacity
    vocab: vocabsize vocab nvocab numtokens v ntokens dictsize numembeddings
    base: base theta ropebase ropetheta freqbase
    batch_first: batchfirst
    batch: maxbatchsize batchsize maxbatch batch bsz
    device: device
    config: config cfg args hparams modelargs opt conf settings params configuration
    tile: tile tilesize chunk chunksize
""")

#: Arguments whose convention is that True hides, as torch.nn.MultiheadAttention's.
HIDES = {"keypaddingmask", "srckeypaddingmask", "pad", "padding", "ispad", "ispadding", "hidemask", "maskout", "blockedmask",
         "ignoremask"}  # fmt: skip
#: Arguments that are added to scores: 0 where one may look, -inf where not.
ADDED = {"additivemask", "bias", "attnbias", "attentionbias"}
#: Arguments that say how many keys each sequence has.
LENGTHS = {"lengths", "lens", "seqlens", "validlen", "validlens", "keylengths", "kvlengths"}


def key(name: str) -> str:
    """W_Q -> wq, 查询投影 -> queryproj."""
    for chinese, english in sorted(_CHINESE, key=lambda pair: -len(pair[0])):
        name = name.replace(chinese, english)
    return re.sub(r"[\W_]+", "", name).lower()


def stem(path: str) -> str:
    """The part that says which matrix it is: attn.to_out.0.weight -> to_out, wq.bias -> wq, in_proj_weight -> in_proj."""
    parts = [part for part in path.split(".") if part]
    if len(parts) > 1 and parts[-1] in ("weight", "bias", "W", "b", "w", "kernel"):
        parts.pop()
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    last = parts[-1] if parts else path
    return re.sub(r"_(weight|bias)$", "", last) if last.startswith("in_proj") else last


def is_bias(path: str) -> bool:
    last = path.split(".")[-1]
    return last in ("b", "bias") or key(last).endswith("bias") or any(p.match(key(last)) for _, p in _BIAS)


def letters(path: str, bias: bool = False) -> tuple | None:
    """("q",), ("k",), ("v",), ("o",), ("k", "v"), ("q", "k", "v") or None: which projections a parameter's name says it is."""
    name = key(stem(path))
    own = path.split(".")[-1] in ("weight", "bias") or not bias
    patterns = _WEIGHT if own or path.endswith("_bias") else _BIAS
    for found, pattern in patterns:
        if pattern.match(name):
            return found
    if bias and patterns is _WEIGHT:
        for found, pattern in _BIAS:
            if pattern.match(name):
                return found
    return None


def argument(name: str) -> str | None:
    """What a call's argument is: "x", "q", "mask", "num_heads" ..., "W_q", "b_o" ..., or None."""
    name_key = key(name)
    if name_key in _ROLE:
        return _ROLE[name_key]
    if name_key.endswith("mask"):
        return "mask"
    for prefix, patterns in (("b", _BIAS), ("W", _WEIGHT)):
        for found, pattern in patterns:
            if pattern.match(name_key):
                return f"{prefix}_{''.join(found)}"
    return None


def setting(name: str) -> str | None:
    """What a constructor's argument is: "embed", "heads", "dropout" ..., or None."""
    return _SETTING.get(key(name))
