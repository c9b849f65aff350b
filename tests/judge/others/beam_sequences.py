import torch


def beam_step(logits, scores, sequences, beam_width):
    logp = torch.log_softmax(logits, dim=-1)
    top = torch.topk((scores.unsqueeze(1) + logp).flatten(), beam_width)
    old = torch.div(top.indices, logp.size(-1), rounding_mode="floor")
    return top.values, torch.cat([sequences[old], (top.indices % logp.size(-1)).unsqueeze(1)], dim=1)
