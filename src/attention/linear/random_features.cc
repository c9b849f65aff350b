// Rows for FeatureMap::kSoftmax: Gaussian directions made orthogonal within blocks of head_dim, with lengths of their
// own. Choromanski 2021 (2009.14794), section 2.4. In double, with basic operations only, so that a seed gives the same
// everywhere.
#include <cmath>
#include <vector>

#include "core/check.h"
#include "core/overlap.h"
#include "core/random.h"
#include "qkv/linear_attention.h"

namespace qkv::inline v0 {
namespace {

using Row = std::vector<double>;

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t n = 0; n < a.size(); ++n) sum += a[n] * b[n];
  return sum;
}

Row draw(Random& random, std::size_t width) {
  Row row(width);
  for (double& x : row) x = random.normal();
  return row;
}

/// A unit vector orthogonal to all of `block`. Runs Gram-Schmidt twice, since one pass loses digits.
Row next_direction(Random& random, const std::vector<Row>& block, std::size_t width) {
  for (;;) {
    Row row = draw(random, width);
    const double drawn = std::sqrt(dot(row, row));
    for (int pass = 0; pass < 2; ++pass) {
      for (const Row& other : block) {
        const double share = dot(row, other);
        for (std::size_t n = 0; n < width; ++n) row[n] -= share * other[n];
      }
    }
    const double length = std::sqrt(dot(row, row));
    if (!(length > 1e-8 * drawn)) continue;  // it lay in the others' span
    for (double& x : row) x /= length;
    return row;
  }
}

template <class T> void fill(std::uint64_t seed, const View<T, 2>& features) {
  check<ShapeError>(features.size(0) >= 0 && features.size(1) >= 1, "random_features",
      "features must be [F, D] with D at least 1: got ", features);
  check_written("random_features", {"features", features});
  Random directions(seed, 0), lengths(seed, 1);
  const auto width = static_cast<std::size_t>(features.size(1));
  std::vector<Row> block;
  for (Index f = 0; f < features.size(0); ++f) {
    if (block.size() == width) block.clear();
    block.push_back(next_direction(directions, block, width));
    const Row other = draw(lengths, width);
    const double length = std::sqrt(dot(other, other));
    for (Index d = 0; d < features.size(1); ++d) {
      features(f, d) = static_cast<T>(length * block.back()[static_cast<std::size_t>(d)]);
    }
  }
}

}  // namespace

void random_features(std::uint64_t seed, View<float, 2> features) { fill(seed, features); }
void random_features(std::uint64_t seed, View<double, 2> features) { fill(seed, features); }

}  // namespace qkv::inline v0
