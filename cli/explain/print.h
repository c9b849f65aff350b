// How explain shows matrices, heads and steps; and its backward pass. Not: the numbers (explain.h).
#pragma once

#include <string>
#include <vector>

#include "explain/explain.h"

namespace qkv::cli {

using Lines = std::vector<std::string>;

/// A matrix with a label before each row.
Lines matrix(const std::string& title, const Lines& labels, const View<const float, 2>& rows, int width);
/// [1, L, E] as a matrix.
Lines matrix(const std::string& title, const Lines& labels, const Tensor<float>& x, int width);
/// [rows, columns]
Lines matrix(const std::string& title, const Lines& labels, const Tensor<double>& x, int width);

/// [1, H, L, n]: the heads side by side.
void print_heads(const Lines& labels, const View<const float, 4>& x, int width);
/// [H, L, n]
void print_heads(const Lines& labels, const Tensor<double>& x, int width);

/// "3  view(B, L, H, d)   [1, 3, 2, 2]   what it does".
void print_step(int step, const std::string& name, const std::string& shape, const std::string& what);

void print_backward(const LayerWalk& walk, const BackwardWalk& back);
Json to_json(const BackwardWalk& back);

}  // namespace qkv::cli
