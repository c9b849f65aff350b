// The NumPy example of article 003, on the numbers that its code draws.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "explain/explain.h"

namespace qkv::cli {
namespace {

constexpr Index kLength = 5, kDepth = 8;

/// np.random.seed(seed), then randn: NumPy's legacy stream, the polar method on a Mersenne twister. It is frozen.
class NumpyNormal {
 public:
  explicit NumpyNormal(unsigned seed) : twister_(seed) {}
  Array draw(judge::Shape shape) {
    Array array(std::move(shape));
    for (judge::Number& number : array.data) number = next();
    return array;
  }

 private:
  double uniform() {
    const double high = static_cast<double>(twister_() >> 5U), low = static_cast<double>(twister_() >> 6U);
    return (high * 67108864 + low) / 9007199254740992;
  }
  double next() {
    if (!std::isnan(other_)) return std::exchange(other_, std::nan(""));
    double x = 0, y = 0, square = 0;
    while (square >= 1 || square == 0) {
      x = 2 * uniform() - 1;
      y = 2 * uniform() - 1;
      square = x * x + y * y;
    }
    const double factor = std::sqrt(-2 * std::log(square) / square);
    other_ = factor * x;
    return factor * y;
  }

  std::mt19937 twister_;
  double other_ = std::nan("");
};

Array row_of(std::initializer_list<double> numbers) {
  Array row({1, static_cast<Index>(numbers.size())});
  std::ranges::copy(numbers, row.data.begin());
  return row;
}

}  // namespace

std::string row_text(const Array& matrix, Index row) {
  std::string text;
  for (Index j = 0; j < matrix.size(-1); ++j)
    text += fmt::format("{}{:.2f}", text.empty() ? "[" : " ", matrix[row * matrix.size(-1) + j].value);
  return text + "]";
}

Example numpy_example() {
  Example example;
  judge::Arrays& a = example.arrays;
  NumpyNormal normal(0);
  for (const char* name : {"q", "k", "v"}) a[name] = normal.draw({kLength, kDepth});
  const Array scores = matmul(a["q"], transpose(a["k"])) * judge::Number(1 / std::sqrt(static_cast<double>(kDepth)));
  a["weights"] = softmax(scores);
  a["causal_weights"] = softmax(past(scores, -std::numeric_limits<double>::infinity()));
  a["out"] = matmul(a["weights"], a["v"]);
  a["causal_out"] = matmul(a["causal_weights"], a["v"]);
  a["first_row"] = row_of({0.25, 0.21, 0.18, 0.20, 0.16});  // as the article prints them
  a["second_causal_row"] = row_of({0.28, 0.72, 0.00, 0.00, 0.00});

  const Array &plain = a["weights"], &causal = a["causal_weights"];
  double apart = 0;  // of a causal row from the plain row divided by what the prefix holds of it
  Index own = 0;
  for (Index i = 0; i < kLength; ++i) {
    double prefix = 0;
    bool prefers_itself = true;
    for (Index j = 0; j <= i; ++j) prefix += plain[i * kLength + j].value;
    for (Index j = 0; j < kLength; ++j) {
      const double weight = plain[i * kLength + j].value;
      apart = std::max(apart, std::abs(causal[i * kLength + j].value - (j <= i ? weight / prefix : 0)));
      prefers_itself &= weight <= plain[i * kLength + i].value;
    }
    own += prefers_itself;
  }
  const std::string first = row_text(plain, 0), second = row_text(causal, 1), printed = row_text(a["first_row"], 0),
                    printed_causal = row_text(a["second_causal_row"], 0);
  example.claims = {
      {"The first row is " + first + "; the article prints " + printed + ", which its code does not give.",
          first != printed, ""},
      {"The second causal row is " + second + "; the article prints " + printed_causal +
              ", which its code does not give.",
          second != printed_causal, ""},
      {"A causal row is the plain row without the future, divided by what is left.",
          apart <= 4 * static_cast<double>(kLength) * std::numeric_limits<double>::epsilon(),
          small_text(apart) + " apart"},
      {"The article says that a token usually attends to itself fairly strongly. In these random numbers no row "
       "attends most to itself.",
          own == 0, fmt::format("{} of {} rows have their largest weight on themselves", own, kLength)}};
  return example;
}

}  // namespace qkv::cli
