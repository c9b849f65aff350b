// Rotary positions as arrays: angles, and the turn of pairs. y = x cos(angle) + partner(x) sin(angle).
#pragma once

#include "judge/textbook.h"

namespace qkv::judge {

/// sin and cos of an angle of which `error` is known.
Number sine(Number angle);
Number cosine(Number angle);

/// [T, d / 2]: position times base^(-exponent[i]).
Array rotary_angles(const Array& positions, double base, const std::vector<double>& exponents);
/// 2 i / d for i < d / 2.
std::vector<double> rotary_exponents(Index width);
/// [T, d / 2] -> [T, d]: each pair's angle at both of its columns. Pairs (2i, 2i + 1) if interleaved, otherwise (i, i + d/2).
Array spread_angles(const Array& angles, bool interleaved);
/// The other column of each pair, negative where it comes to the first: (-second, first). x [..., d].
Array partners(const Array& x, bool interleaved);
/// x [B, H, T, d] turned by columns' angles [T, d].
Array turned(const Array& x, const Array& angles, bool interleaved);
/// Whether the work's pairs are (2i, 2i + 1).
bool interleaved_pairs(const Work& work);

}  // namespace qkv::judge
