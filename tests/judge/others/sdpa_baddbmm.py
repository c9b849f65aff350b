import torch
import torch.nn.functional as F


def attention(query, key, value, attn_mask=None, dropout_p=0.0, training=False):
    N, L, E = query.shape
    query_scaled = query * E ** -0.5
    if attn_mask is not None:
        weights = torch.baddbmm(attn_mask, query_scaled, key.transpose(1, 2))
    else:
        weights = torch.bmm(query_scaled, key.transpose(1, 2))
    weights = F.softmax(weights, dim=2)
    weights = F.dropout(weights, p=dropout_p, training=training)
    return torch.bmm(weights, value)
