from header import nn, softmax, xp


class Cached(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, cache=None):
        B, n, E = x.shape
        H, d = self.heads, E // self.heads
        q, k, v = (f(x).reshape(B, n, H, d).swapaxes(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        past = (k[:, :, :0], v[:, :, :0]) if cache is None else cache
        keys, values = xp.concatenate([past[0], k], 2), xp.concatenate([past[1], v], 2)
        kept = keys, values
        T = keys.shape[2]
        i, j = xp.arange(n)[:, None] + T - n, xp.arange(T)[None, :]
        scores = xp.where(j <= i, q @ keys.swapaxes(-1, -2) / d**0.5, -1e9)
        joined = (softmax(scores, -1) @ values).swapaxes(1, 2).reshape(B, n, E)
        return self.to_out(joined), kept
