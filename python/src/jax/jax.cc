// The module qkv._jax: attention as two targets of XLA's foreign function interface, so that it runs inside jax.jit
// without Python. python/qkv/jax.py calls them; it documents the order of operands and the attributes.
//
//   forward:  q k v [bias] [keep] [key_lengths] [sinks] [seed]  -> out lse lse_low
//   backward: q k v out lse lse_low dout dlse, the same behind   -> dq dk dv [dbias] [dsinks]
#include <nanobind/nanobind.h>

#include <mutex>
#include <random>
#include <unordered_map>

#include "arrays/masks.h"
#include "bindings.h"
#include "jax/call.h"
#include "qkv/attention.h"

namespace qkv::python {

namespace {

using xla::attribute;
using xla::CallFrame;
using xla::Operand;

// Masks that traced functions use. A compiled function knows its mask by a random number, not by an address: XLA may
// keep compiled functions on disk, and in another process such a number is unknown, while an address could be another
// mask's.
class MaskTable {
 public:
  std::int64_t add(const MaskObject& mask) {
    const std::lock_guard lock(mutex_);
    std::int64_t token = 0;
    while (token == 0 || masks_.contains(token)) token = static_cast<std::int64_t>(random_() >> 1);
    masks_.emplace(token, mask);
    return token;
  }
  Mask find(std::int64_t token) {
    const std::lock_guard lock(mutex_);
    const auto at = masks_.find(token);
    if (at == masks_.end()) {
      throw OptionError(
          "[qkv.jax] the mask of this compiled function was made in another process: functions with a qkv.Mask cannot "
          "come from jax's compilation cache on disk; pass causal=, window=, key_lengths= or keep= instead");
    }
    return at->second.mask;
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 random_ = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::unordered_map<std::int64_t, MaskObject> masks_;
};
MaskTable& mask_table() {
  // never destroyed: it holds Python's arrays, and the interpreter may be gone by then
  static auto* table = new MaskTable;
  return *table;
}

enum Given : std::int64_t { kBias = 1, kKeep = 2, kKeyLengths = 4, kSinks = 8, kSeed = 16 };

// Operands of both directions: q, k, v, others, and the optional ones behind them.
struct Call {
  Call(const CallFrame& call_frame, int own_operands, const int* ranks) : frame(call_frame) {
    given = attribute<std::int64_t>(frame, "given");
    for (int n = 0; n < own_operands; ++n) add(ranks[n]);
    bias = add_if(kBias, 4), keep = add_if(kKeep, 4), key_lengths = add_if(kKeyLengths, 1);
    sinks = add_if(kSinks, 1), seed = add_if(kSeed, 1);
    leading = xla::leading_sizes(operands);
    for (const Index size : leading) calls *= size;
    tokens_first = attribute<std::int64_t>(frame, "tokens_first") != 0;
    batch = operands[0].size(0);
    mask_token = attribute<std::int64_t>(frame, "mask");
    // Calls that differ only in their sequences become one call with more sequences, so that all threads have work.
    folded = calls > 1 && given == 0 && mask_token == 0;
    for (const Operand& operand : operands) folded = folded && operand.leading_count() == calls;
  }

  template <class T> View<T, 4> heads(const Operand& operand, Index n) const {
    return folded ? operand.folded_heads<T>(leading, tokens_first) : operand.heads<T>(n, leading, tokens_first);
  }
  /// lse and its gradient, [B, H, T] in both layouts.
  template <class T> View<T, 3> rows(const Operand& operand, Index n) const {
    const Index b = folded ? calls * operand.size(0) : operand.size(0);
    return View<T, 3>(operand.data<T>(folded ? 0 : n, leading), {b, operand.size(1), operand.size(2)});
  }

  template <class T> AttentionOptions options(Index n) const {
    AttentionOptions made;
    made.scale = attribute<double>(frame, "scale");
    made.softcap = attribute<double>(frame, "softcap");
    made.empty_row = static_cast<EmptyRow>(attribute<std::int64_t>(frame, "empty_row"));
    const auto align = static_cast<Align>(attribute<std::int64_t>(frame, "align"));
    if (mask_token != 0) made.mask = mask_table().find(mask_token);
    if (attribute<std::int64_t>(frame, "causal") != 0) made.mask = made.mask & Mask::causal(align);
    const std::int64_t left = attribute<std::int64_t>(frame, "left"), right = attribute<std::int64_t>(frame, "right");
    if (left >= 0 || right >= 0) made.mask = made.mask & Mask::window(left, right, align);
    if (key_lengths > 0) {
      const auto* data = operand(key_lengths).data<std::int32_t>(n, leading);
      const std::vector<Index> lengths(data, data + operand(key_lengths).size(0));
      made.mask = made.mask & Mask::key_lengths(lengths);
    }
    if (keep > 0) made.mask = made.mask & Mask::keep(operand(keep).heads<std::uint8_t>(n, leading, false));
    if (bias > 0) made.bias = BiasView(operand(bias).heads<Accumulator<T>>(n, leading, false));
    if (sinks > 0) {
      made.sinks =
          SinkView(View<Accumulator<T>, 1>(operand(sinks).data<Accumulator<T>>(n, leading), {operand(sinks).size(0)}));
    }
    if (seed > 0) {
      const auto* words = operand(seed).data<std::uint32_t>(n, leading);
      const std::uint64_t bits = words[0] | static_cast<std::uint64_t>(words[1]) << 32;
      // Sequences count on from call to call, as if they were one batch.
      made.dropout = {attribute<double>(frame, "dropout"), bits, true, n * batch};
    }
    return made;
  }

  const Operand& operand(int n) const { return operands[static_cast<std::size_t>(n)]; }
  Index runs() const { return folded ? 1 : calls; }

  const CallFrame& frame;
  std::vector<Operand> operands{};
  std::vector<Index> leading{};
  std::int64_t given = 0, mask_token = 0;
  Index calls = 1, batch = 0;
  bool tokens_first = false, folded = false;
  int bias = 0, keep = 0, key_lengths = 0, sinks = 0, seed = 0;  // numbers of operands; 0: not given

 private:
  int add(int rank) {
    operands.emplace_back(xla::buffer_at(frame.operands, static_cast<std::int64_t>(operands.size())), rank);
    return static_cast<int>(operands.size()) - 1;
  }
  int add_if(Given which, int rank) { return (given & which) != 0 ? add(rank) : 0; }
};

Operand result(const CallFrame& frame, std::int64_t n, int rank) { return {xla::buffer_at(frame.results, n), rank}; }

template <class T> void forward(const CallFrame& frame) {
  constexpr int kRanks[] = {4, 4, 4};
  const Call call(frame, 3, kRanks);
  const Operand out = result(frame, 0, 4), lse = result(frame, 1, 3), lse_low = result(frame, 2, 3);
  const std::shared_ptr<Context> with = context();
  for (Index n = 0; n < call.runs(); ++n) {
    attention_forward(call.heads<const T>(call.operand(0), n), call.heads<const T>(call.operand(1), n),
        call.heads<const T>(call.operand(2), n),
        {.out = call.heads<T>(out, n),
            .lse = call.rows<Accumulator<T>>(lse, n),
            .lse_low = call.rows<Accumulator<T>>(lse_low, n)},
        call.options<T>(n), *with);
  }
}

template <class T> void backward(const CallFrame& frame) {
  using Sum = Accumulator<T>;
  constexpr int kRanks[] = {4, 4, 4, 4, 3, 3, 4, 3};
  const Call call(frame, 8, kRanks);
  const Operand dq = result(frame, 0, 4), dk = result(frame, 1, 4), dv = result(frame, 2, 4);
  const bool wants_dbias = attribute<std::int64_t>(frame, "wants_dbias") != 0;
  const std::shared_ptr<Context> with = context();
  for (Index n = 0; n < call.runs(); ++n) {
    AttentionGradients<T> gradients;
    gradients.dq = call.heads<T>(dq, n);
    gradients.dk = call.heads<T>(dk, n);
    gradients.dv = call.heads<T>(dv, n);
    gradients.lse_low = call.rows<const Sum>(call.operand(5), n);
    gradients.dlse = call.rows<const Sum>(call.operand(7), n);
    std::int64_t next = 3;
    if (wants_dbias) gradients.dbias = result(frame, next++, 4).heads<Sum>(n, call.leading, false);
    if (call.sinks > 0) {
      const Operand dsinks = result(frame, next++, 1);
      gradients.dsinks = View<Sum, 1>(dsinks.data<Sum>(n, call.leading), {dsinks.size(0)});
    }
    attention_backward(call.heads<const T>(call.operand(0), n), call.heads<const T>(call.operand(1), n),
        call.heads<const T>(call.operand(2), n), call.heads<const T>(call.operand(3), n),
        call.rows<const Sum>(call.operand(4), n), call.heads<const T>(call.operand(6), n), gradients,
        call.options<T>(n), *with);
  }
}

xla::Error* fail(const CallFrame& frame, xla::ErrorCode code, const char* message) {
  xla::ErrorCreateArgs args{sizeof(xla::ErrorCreateArgs), nullptr, message, code};
  return frame.api->error_create(&args);
}

// XLA asks first which version of the interface a handler was made for. Those used here are the same in all of 0.x, so
// the answer is the caller's own version.
bool answer_metadata(CallFrame& frame) {
  if (frame.extension_start == nullptr || frame.extension_start->type != xla::kMetadataExtension) return false;
  xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(frame.extension_start)->metadata;
  const bool known = frame.api != nullptr && frame.api->api_version.major_version == 0;
  metadata.api_version.major_version = 0;
  metadata.api_version.minor_version = known ? frame.api->api_version.minor_version : 3;
  metadata.traits = 0;
  return true;
}

template <class Body> xla::Error* guarded(CallFrame* frame, Body body) {
  if (answer_metadata(*frame)) return nullptr;
  try {
    switch (xla::buffer_at(frame->operands, 0).type) {
      case xla::kF32: body.template operator()<float>(*frame); break;
      case xla::kF64: body.template operator()<double>(*frame); break;
      case xla::kBF16: body.template operator()<BFloat16>(*frame); break;
      case xla::kF16: body.template operator()<Float16>(*frame); break;
      default: return fail(*frame, xla::kInvalidArgument, "[qkv.jax] q must be float32, float64, bfloat16 or float16");
    }
  } catch (const UnsupportedError& error) {
    return fail(*frame, xla::kUnimplemented, error.what());
  } catch (const Error& error) {
    return fail(*frame, xla::kInvalidArgument, error.what());
  } catch (const std::exception& error) {
    return fail(*frame, xla::kInternal, error.what());
  }
  return nullptr;
}

/// Makes `function` known as module.NAME(), a handler for XLA.
template <class Function> void add_target(nb::module_& m, const char* name, Function) {
  xla::Handler* const handler = [](CallFrame* frame) { return guarded(frame, Function{}); };
  m.def(name, [=] { return nb::capsule(reinterpret_cast<void*>(handler)); });
}

}  // namespace

}  // namespace qkv::python

NB_MODULE(_jax, m) {
  namespace nb = nanobind;
  using namespace qkv::python;
  m.doc() = "Targets of XLA's foreign function interface: what qkv/jax.py registers.";
  use_context();
  add_target(m, "forward_target", []<class T>(const xla::CallFrame& frame) { forward<T>(frame); });
  add_target(m, "backward_target", []<class T>(const xla::CallFrame& frame) { backward<T>(frame); });
  m.def("keep_mask", [](const MaskObject& mask) { return mask_table().add(mask); });
}
