// The steps of attention that most tasks are made of, each over the arrays of a Work. Stage names in their order: parameters,
// project, split, group, see, scores, scale, mask, softmax, empty, mix, merge, output.
#pragma once

#include "judge/textbook.h"

namespace qkv::judge {

void parameters_step(Work& work);   ///< W_q W_k W_v b_q b_k b_v, from W_qkv [E, 3E] where they are merged; W_o b_o
void project_step(Work& work);      ///< q k v [B, L, .] = x W + b, or the probe's own q k v
void split_step(Work& work);        ///< [B, L, H d] -> [B, H, L, d]; what has four axes stays
void group_step(Work& work);        ///< k v of Hkv heads -> H heads: head h reads h / (H / Hkv)
void see_step(Work& work);          ///< visible [B, H, Tq, Tk] of 0/1, from mask and causal (bottom-right)
void scores_step(Work& work);       ///< scores [B, H, Tq, Tk] = q k^T
void scale_step(Work& work);        ///< scores / sqrt(d)
void mask_step(Work& work);         ///< hidden scores -> -inf
void softmax_step(Work& work);      ///< weights [B, H, Tq, Tk], row by row
void empty_step(Work& work);        ///< rows that see nothing: weights 0
void mix_step(Work& work);          ///< values [B, H, Tq, d] = weights v
void merge_step(Work& work);        ///< merged [B, Tq, H d]
void output_step(Work& work);       ///< out = merged W_o + b_o, or merged where the task has no W_o
void take_values_step(Work& work);  ///< out = values: functions on q, k, v

/// [B, Tq, Tk] or [B, 1, Tq, Tk] -> [B, H, Tq, Tk].
Array over_heads(const Array& mask, Index heads);
/// Scores where `visible` is 0 become `fill`.
void fill_hidden(Work& work, double fill);
Array split_heads(const Array& x, Index heads);
Array merge_heads(const Array& x);

/// q, k, v given: given see scores scale mask softmax empty mix output.
Textbook function_textbook();
/// x and parameters given: all stages.
Textbook layer_textbook();

}  // namespace qkv::judge
