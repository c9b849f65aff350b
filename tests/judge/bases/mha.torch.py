from header import nn, softmax, xp


class MultiHead(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, mask=None):
        B, L, E = x.shape
        H, d = self.heads, E // self.heads
        queries, keys, values = self.to_q(x), self.to_k(x), self.to_v(x)
        q, k, v = (y.reshape(B, L, H, d).swapaxes(1, 2) for y in (queries, keys, values))
        products = q @ k.swapaxes(-1, -2)
        scaled = products / d**0.5
        scores = scaled if mask is None else xp.where(mask == 0, -1e9, scaled)
        weights = softmax(scores, -1)
        mixed = weights @ v
        joined = mixed.swapaxes(1, 2).reshape(B, L, E)
        return self.to_out(joined)
