"""
Attention over several ranks: the functions that qkv/torch/parallel.py calls.
"""

import qkv._core

class ContextParallel:
    def __init__(self, transport: object, layout: object, method: str, block: int) -> None: ...
    def forward(self, q: object, k: object, v: object, out: object, lse: object, options: qkv._core.Options | None) -> None: ...
    def backward(
        self,
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
        dlse: object | None,
        options: qkv._core.Options | None,
    ) -> None: ...

def rows_of_rank(layout: object, length: int, block: int, rank: int, ranks: int) -> list[tuple[int, int]]: ...
