import numpy as np


class StreamingAttention:
    def __init__(self, W_q, W_k, W_v, W_o, n_heads):
        self.weights, self.W_o, self.n_heads = (W_q, W_k, W_v), W_o, n_heads
        self.reset()

    def reset(self):
        self.keys = self.values = None

    def step(self, x):
        B, T, E = x.shape
        q, k, v = ((x @ w).reshape(B, T, self.n_heads, -1).transpose(0, 2, 1, 3) for w in self.weights)
        self.keys = k if self.keys is None else np.concatenate([self.keys, k], 2)
        self.values = v if self.values is None else np.concatenate([self.values, v], 2)
        s = q @ self.keys.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        past = s.shape[-1] - T
        s = np.where(np.tri(T, past + T, past, dtype=bool), s, -np.inf)
        w = np.exp(s - s.max(-1, keepdims=True))
        w /= w.sum(-1, keepdims=True)
        return (w @ self.values).transpose(0, 2, 1, 3).reshape(B, T, E) @ self.W_o
