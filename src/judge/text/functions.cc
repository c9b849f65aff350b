// The functions that textbooks and mistakes call. An index is the number of an array with one element; axes count from
// the end where they are negative.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "judge/text/language.h"

namespace qkv::judge {
namespace {

double number(const Value& x) {
  need(x->count() == 1);
  return (*x)[0].value;
}
/// Within 0 and n - 1.
Index index(Number x, Index n) {
  need(x.value > -1 && x.value < static_cast<double>(n));
  return static_cast<Index>(x.value);
}
/// A size, an index or an axis that an array can have.
constexpr Index kMost = Index{1} << 22;
Index whole(const Value& x) {
  need(std::fabs(number(x)) <= static_cast<double>(kMost));
  return static_cast<Index>(number(x));
}
int axis(const Value& x) { return static_cast<int>(whole(x)); }

/// The sizes or axes from the n-th argument on.
template <class T> std::vector<T> rest(Values x, std::size_t n) {
  std::vector<T> found;
  for (; n < x.size(); ++n) found.push_back(static_cast<T>(index(number(x[n]), kMost)));
  return found;
}
std::vector<Index> indices(const Array& a) {
  std::vector<Index> found;
  for (const Number& x : a.data) found.push_back(index(x, kMost));
  return found;
}

Array full(double x, Shape shape) {
  need(count_of(shape) <= kMost);
  return Array(std::move(shape), Number(x));
}
template <Number (*f)(Number)> Array each(Values x) { return map(*x[0], f); }

Array size(Values x) {
  if (is_nothing(*x[0])) return {};
  return constant(static_cast<double>(x[0]->size(axis(x[1]))));
}
Array range(Values x) {
  Array out(Shape{whole(x[0])});
  for (Index i = 0; i < out.count(); ++i) out[i] = static_cast<double>(i);
  return out;
}
Array list(Values x) {
  if (x.size() == 1) return reshape(*x[0], {x[0]->count()});
  Array out(Shape{static_cast<Index>(x.size())});
  for (std::size_t i = 0; i < x.size(); ++i) out.data[i] = number(x[i]);
  return out;
}
Array as(Values x) {
  need(x[0]->shape == x[1]->shape);
  return *x[0];
}
Array where(Values x) {
  if (x[0]->shape.empty()) return *x[number(x[0]) != 0 ? 1 : 2];
  const Shape shape = joint(joint(x[0]->shape, x[1]->shape), x[2]->shape);
  Array out = broadcast(*x[1], shape);
  const Array condition = zip(out, *x[0], [](Number, Number c) { return c; });
  Index i = 0;
  return zip(out, *x[2], [&](Number a, Number b) { return condition[i++].value != 0 ? a : b; });
}
Array row_maximum(Values x) {
  Array out(sum(*x[0], -1).shape, Number(-std::numeric_limits<double>::infinity()));
  const Index n = x[0]->size(-1);
  for (Index i = 0; i < x[0]->count(); ++i) out[i / n] = max(out[i / n], (*x[0])[i]);
  return out;
}
/// 1 at the k largest elements of each row.
Array largest_of_row(Values x) {
  Array out(x[0]->shape);
  const Index n = x[0]->size(-1), k = whole(x[1]);
  for (Index i = 0; i < out.count(); ++i) {
    Index larger = 0;
    for (Index j = i / n * n; j < i / n * n + n; ++j)
      larger += (*x[0])[j].value > (*x[0])[i].value || ((*x[0])[j].value == (*x[0])[i].value && j < i);
    out[i] = larger < k ? 1 : 0;
  }
  return out;
}
Array joined(Values x) {
  if (is_nothing(*x[0])) return *x[1];
  return is_nothing(*x[1]) ? *x[0] : concat({*x[0], *x[1]}, axis(x[2]));
}
/// A third of the last axis; nothing of nothing.
Array part(Values x) {
  if (is_nothing(*x[0])) return {};
  const Index width = x[0]->size(-1) / 3;
  return slice(*x[0], -1, whole(x[1]) * width, (whole(x[1]) + 1) * width);
}
/// A mask [B, Tq, Tk] or [B, ., Tq, Tk] with four axes.
Array four(Values x) {
  if (is_nothing(*x[0]) || x[0]->rank() == 4) return *x[0];
  return reshape(*x[0], {x[0]->size(0), 1, x[0]->size(1), x[0]->size(2)});
}

/// The other column of each pair, negative where it comes to the first: (-second, first).
Array partners(Values x) {
  const bool interleaved = number(x[1]) != 0;
  const Array& a = *x[0];
  Array out = a;
  const Index width = a.size(-1), step = interleaved ? 1 : width / 2;
  need(width % 2 == 0);
  for (Index n = 0; n < a.count(); ++n) {
    const bool first = interleaved ? n % width % 2 == 0 : n % width < step;
    out[n] = first ? -a[n + step] : a[n - step];
  }
  return out;
}

/// Of [..., V] the element that ids [...] say.
Array pick(Values x) {
  Array out(x[1]->shape);
  const Index width = x[0]->size(-1);
  for (Index n = 0; n < out.count(); ++n) out[n] = (*x[0])[n * width + index((*x[1])[n], width)];
  return out;
}
/// Rows [B, T, E] added to those of a table that ids [B, T] say; with `adds` false the last one stays.
template <bool adds> Array scatter(Values x) {
  const Array &rows = *x[0], &ids = *x[1];
  const Index width = rows.size(-1);
  Array table(x[2]->shape);
  for (Index n = 0; n < rows.count(); ++n) {
    Number& to = table[index(ids[n / width], table.size(0)) * width + n % width];
    to = adds ? to + rows[n] : rows[n];
  }
  return table;
}

using NamedFunction = std::pair<std::string_view, Function>;
constexpr NamedFunction kFunctions[] = {
    {"abs", each<fabs>},
    {"as", as},  // a, which must have b's shape
    {"as_shape", [](Values x) { return reshape(*x[0], x[1]->shape); }},
    {"concat", joined},
    {"cos", each<cos>},
    {"count", [](Values x) { return constant(static_cast<double>(x[0]->count())); }},
    {"erf", each<erf>},
    {"error", each<[](Number x) { return Number(x.error); }>},
    {"exact", each<[](Number x) { return Number(x.value); }>},
    {"exp", each<exp>},
    {"floor", each<[](Number x) { return Number(std::floor(x.value)); }>},
    {"four", four},
    {"full", [](Values x) { return full(number(x[0]), rest<Index>(x, 1)); }},
    {"largest_of_row", largest_of_row},
    {"like", [](Values x) { return full(number(x[1]), x[0]->shape); }},
    {"linear", [](Values x) { return is_nothing(*x[1]) ? *x[0] : linear(*x[0], *x[1], *x[2]); }},
    {"list", list},
    {"log", each<log>},
    {"max", [](Values x) { return zip(*x[0], *x[1], max); }},
    {"mean", [](Values x) { return mean(*x[0], axis(x[1])); }},
    {"merge", [](Values x) { return merge_heads(*x[0]); }},
    {"min", [](Values x) { return constant(std::min(number(x[0]), number(x[1]))); }},
    {"part", part},
    {"partners", partners},
    {"permute", [](Values x) { return permute(*x[0], rest<int>(x, 1)); }},
    {"pick", pick},
    {"range", range},
    {"reshape", [](Values x) { return reshape(*x[0], rest<Index>(x, 1)); }},
    {"row_maximum", row_maximum},
    {"scatter", scatter<true>},
    {"scatter_last", scatter<false>},
    {"sigmoid", each<sigmoid>},
    {"sin", each<sin>},
    {"size", size},
    {"slice", [](Values x) { return slice(*x[0], axis(x[1]), whole(x[2]), whole(x[3])); }},
    {"softmax", [](Values x) { return softmax(*x[0], x.size() > 1 ? axis(x[1]) : -1); }},
    {"softmax_unshifted", [](Values x) { return softmax(*x[0], -1, false); }},
    {"split", [](Values x) { return split_heads(*x[0], whole(x[1])); }},
    {"sqrt", each<sqrt>},
    {"sum", [](Values x) { return sum(*x[0], axis(x[1])); }},
    {"take", [](Values x) { return take(*x[0], axis(x[1]), indices(*x[2])); }},
    {"tanh", each<tanh>},
    {"weight_gradient", [](Values x) { return weight_gradient(*x[0], *x[1]); }},
    {"where", where},
    {"with_error",
        [](Values x) { return zip(*x[0], *x[1], [](Number a, Number e) { return Number(a.value, e.value); }); }},
};

}  // namespace

Function find_function(std::string_view name) {
  const auto found = std::ranges::find(kFunctions, name, &NamedFunction::first);
  return found == std::end(kFunctions) ? nullptr : found->second;
}

}  // namespace qkv::judge
