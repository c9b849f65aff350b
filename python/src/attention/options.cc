// Options of a call: made once in Python, passed to forward and backward alike.
#include "attention/options.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/choice.h"
#include "bindings.h"
#include "qkv/error.h"

namespace qkv::python {

namespace {

// Calls Python with whole blocks of scores: function(scores, wants_slopes, batch, head, first_query, first_key) ->
// contiguous array [1 or 2, queries, keys] of the scores' type, values first and then slopes. python/qkv/_options.py
// makes such a function from the user's.
class PythonScoreMod final : public ScoreMod {
 public:
  PythonScoreMod(nb::callable function, bool has_slope) : function_(std::move(function)), has_slope_(has_slope) {}
  ~PythonScoreMod() override {
    const nb::gil_scoped_acquire lock;
    function_.reset();
  }
  void apply(const ScoreBlock<float>& block) const override { apply_to(block); }
  void apply(const ScoreBlock<double>& block) const override { apply_to(block); }
  bool has_slope() const override { return has_slope_; }

 private:
  template <class T> void apply_to(const ScoreBlock<T>& block) const {
    const nb::gil_scoped_acquire lock;
    const Index queries = block.scores.size(0), keys = block.scores.size(1);
    // A copy of its own: the callback may keep what it is passed, while the kernel's scratch moves on.
    auto* copy = new T[static_cast<std::size_t>(queries * keys)];
    const nb::capsule owner(copy, [](void* data) noexcept { delete[] static_cast<T*>(data); });
    for (Index i = 0; i < queries; ++i) {
      for (Index j = 0; j < keys; ++j) copy[i * keys + j] = block.scores(i, j);
    }
    const nb::ndarray<nb::numpy, T> scores(
        copy, {static_cast<std::size_t>(queries), static_cast<std::size_t>(keys)}, owner);
    const bool wants_slopes = block.slopes.data() != nullptr;
    const nb::object result =
        (*function_)(scores, wants_slopes, block.batch, block.head, block.first_query, block.first_key);
    const Array array("score_mod", "result", result);
    const auto values = array.input<T, 3>();
    if (values.size(0) != (wants_slopes ? 2 : 1) || values.size(1) != queries || values.size(2) != keys) {
      throw ShapeError("[score_mod] the result must have the sizes of the scores: got " + values.shape());
    }
    for (Index i = 0; i < queries; ++i) {
      for (Index j = 0; j < keys; ++j) {
        block.scores(i, j) = values(0, i, j);
        if (wants_slopes) block.slopes(i, j) = values(1, i, j);
      }
    }
  }

  std::optional<nb::callable> function_;
  bool has_slope_;
};

// Rows and heads of a table, float or double.
template <class Make> PositionBiasObject of_table(nb::handle object, Make make) {
  auto table = std::make_shared<const Array>("PositionBias", "table", object);
  PositionBiasObject made;
  with_wide_type("PositionBias", *table, [&]<class T>() { made.value = make(table->input<T, 2>()); });
  made.table = std::move(table);
  return made;
}

template <class Target, int Rank, class Owner>
void borrow(Target& target, const char* name, nb::handle object, Owner& owner) {
  if (object.is_none()) return;
  auto array = std::make_shared<const Array>("attention", name, object);
  with_wide_type("attention", *array, [&]<class T>() { target = Target(array->template input<T, Rank>()); });
  owner.push_back(std::move(array));
}

void bind_position_bias(nb::module_& m) {
  nb::class_<PositionBiasObject>(m, "PositionBias");
  m.def("alibi", [](std::vector<double> slopes, const std::string& align) {
    return PositionBiasObject{PositionBias::alibi(std::move(slopes), parse_align("PositionBias", align))};
  });
  m.def("t5", [](nb::handle table, Index max_distance, bool bidirectional, const std::string& align) {
    return of_table(table, [&](auto view) {
      return PositionBias::t5(
          view, T5Buckets{view.size(0), max_distance, bidirectional}, parse_align("PositionBias", align));
    });
  });
  m.def("relative", [](nb::handle table, const std::string& align) {
    return of_table(table, [&](auto view) { return PositionBias::relative(view, parse_align("PositionBias", align)); });
  });
  m.def("alibi_slopes", &alibi_slopes);
}

}  // namespace

void bind_options(nb::module_& m) {
  bind_position_bias(m);
  nb::class_<ScoreMod>(m, "ScoreMod");
  m.def("score_mod", [](nb::callable function, bool has_slope) -> std::shared_ptr<ScoreMod> {
    return std::make_shared<PythonScoreMod>(std::move(function), has_slope);
  });
  nb::class_<OptionsObject>(m, "Options")
      .def("__init__",
          [](OptionsObject* self, const nb::kwargs& given) {
            OptionsObject made;
            AttentionOptions& o = made.value;
            const MaskObject* mask = nullptr;
            const PositionBiasObject* position_bias = nullptr;
            nb::object bias = nb::none(), sinks = nb::none();
            std::string bits = "fast";
            Keywords("attention", given)("mask", mask)("scale", o.scale)
                .word("empty_row", o.empty_row, kEmptyRows)("softcap", o.softcap)("dropout", o.dropout.p)(
                    "seed", o.dropout.seed)("bias", bias)("bits", bits)("first_sequence", o.dropout.first_sequence)(
                    "sinks", sinks)("position_bias", position_bias)("score_mod", o.score_mod)
                .end();
            o.dropout.training = o.dropout.p != 0;
            o.bits = parse_bits(bits);
            if (mask != nullptr) o.mask = mask->mask, made.borrowed = mask->borrowed;
            borrow<BiasView, 4>(o.bias, "bias", bias, made.borrowed);
            borrow<SinkView, 1>(o.sinks, "sinks", sinks, made.borrowed);
            if (position_bias != nullptr) {
              o.position_bias = position_bias->value;
              if (position_bias->table != nullptr) made.borrowed.push_back(position_bias->table);
            }
            new (self) OptionsObject(std::move(made));
          })
      .def_prop_ro("position_bias_shape", [](const OptionsObject& o) {
        return nb::make_tuple(o.value.position_bias.rows(), o.value.position_bias.heads());
      });
}

}  // namespace qkv::python
