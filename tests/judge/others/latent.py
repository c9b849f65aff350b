import numpy as np


def rotate(x, positions):
    freqs = 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    cos, sin = np.cos(np.outer(positions, freqs)), np.sin(np.outer(positions, freqs))
    even, odd = x[..., ::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


class MLA:
    def __init__(self, params, n_heads, nope_dim, rope_dim):
        self.p, self.h, self.n, self.r = params, n_heads, nope_dim, rope_dim
        self.latents = np.zeros((0, params["W_dkv"].shape[1]))
        self.keys = np.zeros((0, rope_dim))

    def forward(self, x):
        w, t, past = self.p, len(x), len(self.latents)
        pos = np.arange(past, past + t)
        q = (x @ w["W_q"]).reshape(t, self.h, -1).transpose(1, 0, 2)
        q_rope = rotate(q[..., self.n :], pos)
        self.latents = np.concatenate([self.latents, x @ w["W_dkv"]])
        self.keys = np.concatenate([self.keys, rotate(x @ w["W_kr"], pos)])
        q_latent = np.einsum("htn,chn->htc", q[..., : self.n], w["W_uk"].reshape(-1, self.h, self.n))
        scores = q_latent @ self.latents.T + q_rope @ self.keys.T
        scores = scores / np.sqrt(self.n + self.r)
        scores[:, np.arange(past + t) > pos[:, None]] = -np.inf
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        probs = probs / probs.sum(-1, keepdims=True)
        mixed = np.einsum("htc,chv->thv", probs @ self.latents, w["W_uv"].reshape(len(w["W_uv"]), self.h, -1))
        return mixed.reshape(t, -1) @ w["W_o"]
