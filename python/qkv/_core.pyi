"""Attention, forward and backward: the functions that qkv/*.py call."""

from collections.abc import Callable, Sequence

from qkv import (
    CacheFullError as CacheFullError,
    Error as Error,
    FormatError as FormatError,
    IoError as IoError,
    OptionError as OptionError,
    ShapeError as ShapeError,
    UnsupportedError as UnsupportedError,
)

def num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def available_threads() -> int: ...
def isa() -> str: ...
def set_isa(name: str) -> None: ...
def bits() -> str: ...
def set_bits(name: str) -> None: ...
def supported_isas() -> list[str]: ...
def trim() -> None: ...
def scratch_bytes() -> int: ...

class BlockMap:
    @property
    def q_block(self) -> int: ...
    @property
    def kv_block(self) -> int: ...
    @property
    def q_blocks(self) -> int: ...
    @property
    def kv_blocks(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def row_begin(self) -> list[int]: ...
    @property
    def columns(self) -> list[int]: ...
    @property
    def live_blocks(self) -> int: ...
    @property
    def density(self) -> float: ...

def block_map_of_rows(
    arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: Sequence[int], arg7: Sequence[int], /
) -> BlockMap: ...
def longformer_blocks(arg0: int, arg1: int, arg2: int, arg3: Sequence[int], /) -> BlockMap: ...
def big_bird_blocks(arg0: int, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, /) -> BlockMap: ...
def block_map_of_mask(arg0: Mask, arg1: int, arg2: int, arg3: int, arg4: int, arg5: int, arg6: int, /) -> BlockMap: ...

class Mask:
    def __and__(self, arg: Mask, /) -> Mask: ...
    def __or__(self, arg: Mask, /) -> Mask: ...
    def describe(self) -> str: ...
    @property
    def keeps_everything(self) -> bool: ...
    def to_bytes(self, arg0: int, arg1: int, arg2: int, arg3: int, /) -> bytes: ...

def everything() -> Mask: ...
def causal(arg: str, /) -> Mask: ...
def causal_offsets(arg: Sequence[int], /) -> Mask: ...
def window(arg0: int, arg1: int, arg2: str, /) -> Mask: ...
def window_offsets(arg0: int, arg1: int, arg2: Sequence[int], /) -> Mask: ...
def sliding(arg0: int, arg1: str, /) -> Mask: ...
def dilated(arg0: int, arg1: str, /) -> Mask: ...
def chunked(arg0: int, arg1: str, /) -> Mask: ...
def chunked_starts(arg0: int, arg1: Sequence[int], arg2: str, /) -> Mask: ...
def key_lengths(arg: Sequence[int], /) -> Mask: ...
def key_starts(arg: Sequence[int], /) -> Mask: ...
def query_lengths(arg: Sequence[int], /) -> Mask: ...
def prefix(arg: Sequence[int], /) -> Mask: ...
def first(arg: int, /) -> Mask: ...
def global_rows(arg: Sequence[int], /) -> Mask: ...
def global_columns(arg: Sequence[int], /) -> Mask: ...
def documents(arg0: Sequence[int], arg1: Sequence[int], arg2: Mask, /) -> Mask: ...
def document_ids(arg0: Sequence[int], arg1: Sequence[int], /) -> Mask: ...
def document_ids_batch(arg0: object, arg1: object, /) -> Mask: ...
def blocks(arg: BlockMap, /) -> Mask: ...
def keys(arg: object, /) -> Mask: ...
def mask_mod(arg: Callable, /) -> Mask: ...
def keep(array: object, axes: str | None, leading_ones: bool) -> Mask: ...
def drop(array: object, axes: str | None, leading_ones: bool) -> Mask: ...

class PositionBias:
    @property
    def rows(self) -> int: ...
    @property
    def heads(self) -> int: ...

def alibi(arg0: Sequence[float], arg1: str, /) -> PositionBias: ...
def t5(arg0: object, arg1: int, arg2: bool, arg3: str, /) -> PositionBias: ...
def relative(arg0: object, arg1: str, /) -> PositionBias: ...
def alibi_slopes(arg: int, /) -> list[float]: ...
def t5_bucket(arg0: int, arg1: int, arg2: int, arg3: bool, /) -> int: ...

class ScoreMod:
    @property
    def has_slope(self) -> bool: ...

def score_mod(arg0: Callable, arg1: bool, /) -> ScoreMod: ...

class Options:
    def __init__(
        self,
        *,
        mask: Mask | None = None,
        bias: object | None = None,
        scale: float | None = None,
        softcap: float = 0.0,
        empty_row: str = "zero",
        dropout: float = 0.0,
        seed: int = 0,
        first_sequence: int = 0,
        sinks: object | None = None,
        position_bias: PositionBias | None = None,
        score_mod: ScoreMod | None = None,
        bits: str = "fast",
        place: Sequence[int] | None = None,
    ) -> None: ...
    @property
    def has_bias(self) -> bool: ...
    @property
    def has_sinks(self) -> bool: ...
    @property
    def position_bias_shape(self) -> tuple: ...

def forward(
    q: object,
    k: object,
    v: object,
    out: object,
    lse: object | None,
    weights: object | None,
    kind: str,
    options: Options | None,
    capture: Capture | None,
) -> None: ...
def backward(
    q: object,
    k: object,
    v: object,
    out: object,
    lse: object,
    dout: object,
    dq: object | None,
    dk: object | None,
    dv: object | None,
    dbias: object | None,
    dsinks: object | None,
    dposition_bias: object | None,
    dlse: object | None,
    accumulate: bool,
    options: Options | None,
    capture: Capture | None,
) -> None: ...
def weights(q: object, k: object, weights: object, kind: str, options: Options | None) -> None: ...
def plan(q: object, k: object, v: object, options: Options | None) -> dict: ...
def merge(arg0: Sequence, arg1: Sequence, arg2: object, arg3: object, /) -> None: ...
def top_keys(arg0: object, arg1: object, arg2: object, arg3: object, arg4: Mask, /) -> None: ...
def dropout_factors(arg0: float, arg1: int, arg2: int, arg3: object, /) -> None: ...

class Capture:
    def seen(self) -> dict: ...

def capture(
    arg0: Sequence[int],
    arg1: Sequence[int],
    arg2: int,
    arg3: bool,
    arg4: bool,
    arg5: int,
    arg6: int,
    arg7: str,
    arg8: Sequence[int],
    arg9: bool,
    arg10: bool,
    /,
) -> Capture: ...
def jvp(
    q: object,
    k: object,
    v: object,
    lse: object,
    tq: object | None,
    tk: object | None,
    tv: object | None,
    tbias: object | None,
    tout: object,
    tlse: object | None,
    options: Options | None,
) -> None: ...
def double_backward(
    q: object,
    k: object,
    v: object,
    out: object,
    lse: object,
    dout: object,
    ddq: object | None,
    ddk: object | None,
    ddv: object | None,
    ddbias: object | None,
    dlse: object | None,
    gq: object | None,
    gk: object | None,
    gv: object | None,
    gdout: object | None,
    gbias: object | None,
    gdlse: object | None,
    options: Options | None,
) -> None: ...
def paged_forward(
    q: object,
    k: object,
    v: object,
    table: object,
    lengths: Sequence[int],
    out: object,
    lse: object,
    options: Options | None,
) -> None: ...
def varlen_forward(
    q: object,
    k: object,
    v: object,
    out: object,
    lse: object | None,
    q_offsets: Sequence[int],
    kv_offsets: Sequence[int],
    options: Options | None,
) -> None: ...
def varlen_backward(
    q: object,
    k: object,
    v: object,
    out: object,
    lse: object,
    dout: object,
    dq: object | None,
    dk: object | None,
    dv: object | None,
    dbias: object | None,
    dsinks: object | None,
    dposition_bias: object | None,
    dlse: object | None,
    q_offsets: Sequence[int],
    kv_offsets: Sequence[int],
    options: Options | None,
) -> None: ...

class RotaryOptions:
    def __init__(
        self,
        *,
        rotary_dim: int = 0,
        base: float = 10000.0,
        interleaved: bool = False,
        scaling: str = "none",
        factor: float = 1.0,
        original_context: int = 0,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attention_factor: float | None = None,
        low_frequency: float = 1.0,
        high_frequency: float = 4.0,
    ) -> None: ...

class Rotary:
    def __init__(self, arg0: int, arg1: RotaryOptions, /) -> None: ...
    @staticmethod
    def from_tables(arg0: int, arg1: object, arg2: object, arg3: bool, /) -> Rotary: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rotary_dim(self) -> int: ...
    @property
    def attention_factor(self) -> float: ...
    def frequencies(self) -> list[float]: ...
    def forward(self, x: object, y: object, offset: int, offsets: Sequence[int], ids: object | None) -> None: ...
    def backward(self, x: object, y: object, offset: int, offsets: Sequence[int], ids: object | None) -> None: ...

class LinearOptions:
    pass

def linear_options(
    feature_map: str,
    features: object | None,
    causal: bool,
    normalized: bool,
    scale: float | None,
    log_decay: object | None,
    beta: object | None,
    initial_kv: object | None,
    initial_z: object | None,
    form: str,
    tokens_first: bool = False,
) -> LinearOptions: ...
def linear_forward(
    q: object,
    k: object,
    v: object,
    out: object,
    normalizer: object | None,
    final_kv: object | None,
    final_z: object | None,
    options: LinearOptions,
) -> None: ...
def linear_backward(
    q: object,
    k: object,
    v: object,
    out: object | None,
    normalizer: object | None,
    dout: object,
    dq: object | None,
    dk: object | None,
    dv: object | None,
    dlog_decay: object | None,
    dbeta: object | None,
    dinitial_kv: object | None,
    dinitial_z: object | None,
    dfinal_kv: object | None,
    dfinal_z: object | None,
    options: LinearOptions,
) -> None: ...
def convert(arg0: object, arg1: object, /) -> None: ...
def random_features(arg0: int, arg1: object, /) -> None: ...

class KVCache:
    def __init__(
        self,
        *,
        num_kv_heads: int,
        head_dim: int,
        v_head_dim: int = 0,
        storage: str = "float32",
        layout: str = "contiguous",
        sequences: int = 1,
        max_sequences: int = 0,
        capacity: int = 0,
        window: int = 0,
        max_append: int = 1,
        first: int = 0,
        page_size: int = 64,
        pages: int = 0,
        values_in_keys: bool = False,
    ) -> None: ...
    def append(self, k: object, v: object | None, sequences: Sequence[int] | None) -> None: ...
    def read(self, arg0: int, arg1: int, arg2: object, arg3: object, /) -> None: ...
    def forward(
        self,
        q: object,
        sequences: Sequence[int] | None,
        shared: int,
        out: object,
        lse: object | None,
        options: Options | None,
        capture: Capture | None,
    ) -> None: ...
    @property
    def sequences(self) -> list[int]: ...
    def length(self, arg: int, /) -> int: ...
    def add_sequence(self) -> int: ...
    def fork(self, arg: int, /) -> int: ...
    def truncate(self, arg0: int, arg1: int, /) -> None: ...
    def free(self, arg: int, /) -> None: ...
    def clear(self) -> None: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def free_pages(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class Error(Exception): ...
class ShapeError(Error, ValueError): ...
class OptionError(Error, ValueError): ...
class UnsupportedError(Error, NotImplementedError): ...
class CacheFullError(Error, RuntimeError): ...
class FormatError(Error, ValueError): ...
class IoError(Error, OSError): ...

_context: object
__version__: str
