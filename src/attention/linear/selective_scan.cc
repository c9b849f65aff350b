// The selective scan: checks, and a work item for each sequence and block of channels. Sums over blocks (db, dc) and
// over sequences (da, dskip) are added after the region, in one order.
#include <algorithm>

#include "attention/linear/tensors.h"
#include "core/threads/region.h"
#include "dispatch/kernels.h"
#include "kernels/carver.h"
#include "qkv/state_space.h"

namespace qkv::inline v0 {
namespace {

static_assert(kSelectiveScanChunk == kScanChunk);
/// States that are whole vectors of any kind.
constexpr Index kWholeVectors = 16;

template <class T> struct Scan {
  const SelectiveScanInputs<T>& in;
  const ScanKernels<T>& kernels;
  Index batch = in.u.size(0), length = in.u.size(1), channels = in.u.size(2), states = in.a.size(1);
  Index groups = in.b.size(2), group_channels = groups == 0 ? 0 : channels / groups;
  Index blocks = (group_channels + kernels.block - 1) / kernels.block;  // of a group
  Index items = batch * groups * blocks, chunks = (length + kScanChunk - 1) / kScanChunk;
  Index rows = states * kernels.block;  // of a block's state
  T* tables = nullptr;

  struct Part {
    Index b, group, first, count;  // channels [first, first + count)
  };
  Part part(Index item) const {
    const Index in_sequence = item % (groups * blocks), g = in_sequence / blocks;
    const Index first = g * group_channels + in_sequence % blocks * kernels.block;
    return {item / (groups * blocks), g, first, std::min(kernels.block, (g + 1) * group_channels - first)};
  }
  double flops(double each) const {
    return each * static_cast<double>(batch * length) * static_cast<double>(channels * states);
  }

  /// Memory for A log2(e) and D of each block, channels side by side, and of each item for sums of gradients.
  ScratchLease borrow(Context& context, Index num_sums, T** sums) {
    const auto carve = [&](std::byte* base) {
      Carver carver(base);
      tables = carver.array<T>(groups * blocks * (rows + kernels.block));
      *sums = carver.array<T>(items * num_sums);
      return carver.used();
    };
    ScratchLease lease = borrow_scratch(context, carve(nullptr));
    carve(lease.data());
    fill_tables();
    return lease;
  }
  Index of_tokens() const { return length * states; }
  Index of_item() const { return rows + kernels.block + 2 * of_tokens(); }
  void fill_tables() const {
    const View<const T, 3> a(in.a.data(), {1, channels, states}, {0, in.a.stride(0), in.a.stride(1)});
    for (Index item = 0; item < groups * blocks; ++item) {
      const Part p = part(item);
      T *const table = tables + item * (rows + kernels.block), *skip = table + rows;
      load_state(a, {0, p.group, p.first, p.count}, static_cast<T>(1.44269504088896340736), table);
      std::fill_n(skip, kernels.block, T{});
      for (Index c = 0; c < p.count && !in.skip.is_null(); ++c) skip[c] = in.skip(p.first + c);
    }
  }

  ScanBlock<T> block(Index item, const View<T, 4>& kept) const {
    const Part p = part(item);
    const T* const table = tables + item % (groups * blocks) * (rows + kernels.block);
    const auto shared = [&](const View<const T, 4>& x) {
      return TokenStates<T>{x.data() + p.b * x.stride(0) + p.group * x.stride(2), x.stride(1), x.stride(3)};
    };
    ScanBlock<T> t{};
    t.length = length, t.states = states, t.channels = p.count;
    t.u = token_rows(in.u, p.b, p.first), t.dt = token_rows(in.dt, p.b, p.first);
    t.a = table, t.skip = table + rows;
    t.b = shared(in.b), t.c = shared(in.c);
    if (!kept.is_null()) t.kept = kept.data() + p.b * kept.stride(0) + p.first * kept.stride(3);
    t.kept_chunk = kept.stride(1), t.kept_state = kept.stride(2);
    return t;
  }

  void load_state(const View<const T, 3>& from, const Part& p, T factor, T* state) const {
    std::fill_n(state, rows, T{});
    if (from.is_null()) return;
    if (from.stride(2) == 1) {
      return kernels.pack(&from(p.b, p.first, 0), from.stride(1), p.count, states, factor, state, kernels.block);
    }
    for (Index c = 0; c < p.count; ++c) {
      for (Index n = 0; n < states; ++n) state[n * kernels.block + c] = factor * from(p.b, p.first + c, n);
    }
  }
  void store_state(const T* state, const Part& p, const View<T, 3>& to) const {
    if (to.is_null()) return;
    if (to.stride(2) == 1 && states % kWholeVectors == 0) {
      return kernels.pack(state, kernels.block, states, p.count, T{1}, &to(p.b, p.first, 0), to.stride(1));
    }
    for (Index c = 0; c < p.count; ++c) {
      for (Index n = 0; n < states; ++n) to(p.b, p.first + c, n) = state[n * kernels.block + c];
    }
  }

  void forward(const View<T, 3>& out, const View<T, 3>& final, const View<T, 4>& kept, Context& context) const {
    run_items(context, {items, flops(kScanFlops), line_bytes<T>(rows)}, [&](Index item, std::byte* scratch) {
      const Part p = part(item);
      ScanBlock<T> t = block(item, kept);
      t.state = reinterpret_cast<T*>(scratch);
      t.out = token_rows(out, p.b, p.first);
      load_state(in.initial, p, T{1}, t.state);
      kernels.forward(t);
      store_state(t.state, p, final);
    });
  }

  void backward(const View<const T, 3>& dout, const SelectiveScanGradients<T>& g, const View<T, 4>& kept, T* sums,
      Context& context) const {
    const auto scratch_bytes = round_to_line(kernels.backward_scratch_bytes(states));
    run_items(context, {items, flops(kScanBackwardFlops), scratch_bytes + line_bytes<T>(rows)},
        [&](Index item, std::byte* scratch) {
          const Part p = part(item);
          ScanBlockGradient<T> t{};
          t.forward = block(item, kept);
          t.dout = token_rows(dout, p.b, p.first);
          t.du = token_rows(g.du, p.b, p.first), t.ddt = token_rows(g.ddt, p.b, p.first);
          t.dstate = reinterpret_cast<T*>(scratch + scratch_bytes);
          t.da = sums + item * of_item(), t.dskip = t.da + rows;
          t.db = t.dskip + kernels.block, t.dc = t.db + of_tokens();
          load_state(g.dfinal, p, T{1}, t.dstate);
          kernels.backward(t, scratch);
          store_state(t.dstate, p, g.dinitial);
        });
    parallel_for_flops(context, batch * groups, kElementFlops * static_cast<double>(items * of_tokens()) / 8,
        [&](Index number, int) { add_shared(number, sums + rows + kernels.block, g); });
    add_channels(sums, g);
  }

  /// db and dc of one sequence and group.
  void add_shared(Index number, T* sums, const SelectiveScanGradients<T>& g) const {
    T* const sum = sums + number * blocks * of_item();
    for (Index k = 1; k < blocks; ++k) {
      for (Index e = 0; e < 2 * of_tokens(); ++e) sum[e] += sum[k * of_item() + e];
    }
    const Index b = number / groups, group = number % groups;
    for (const auto& [to, from] : {std::pair(g.db, sum), std::pair(g.dc, sum + of_tokens())}) {
      for (Index t = 0; t < length && !to.is_null(); ++t) {
        for (Index n = 0; n < states; ++n) to(b, t, group, n) = blocks == 0 ? T{} : from[t * states + n];
      }
    }
  }

  /// da and dskip.
  void add_channels(const T* sums, const SelectiveScanGradients<T>& g) const {
    for (Index item = 0; item < groups * blocks; ++item) {
      const Part p = part(item);
      for (Index c = 0; c < p.count; ++c) {
        const auto over_batch = [&](Index at) {
          T sum = 0;
          for (Index b = 0; b < batch; ++b) sum += sums[(b * groups * blocks + item) * of_item() + at];
          return sum;
        };
        for (Index n = 0; n < states && !g.da.is_null(); ++n) g.da(p.first + c, n) = over_batch(n * kernels.block + c);
        if (!g.dskip.is_null()) g.dskip(p.first + c) = over_batch(rows + c);
      }
    }
  }
};

template <class T> Scan<T> checked(const char* function, const SelectiveScanInputs<T>& in, const Context& context) {
  const LinearAttentionKernels<T>& kernels = for_element<T>(kernel_tables(context).linear_attention);
  const Scan<T> scan{in, is_invariant(context) ? kernels.invariant_scan : kernels.scan};
  check<ShapeError>(scan.states >= 1 && scan.groups >= 1 && scan.channels % scan.groups == 0, function,
      "a must be [C, N], N at least 1, and b [B, T, G, N], C a multiple of G: got a ", in.a, ", b ", in.b);
  return scan;
}
template <class T> std::array<CallTensor, 7> inputs_of(const SelectiveScanInputs<T>& in, const Scan<T>& s) {
  return {{{"u", in.u, kInRows, s.batch, s.length, s.channels}, {"dt", in.dt, kInRows, s.batch, s.length, s.channels},
      {"a", in.a, kAnyStrides, s.channels, s.states}, {"b", in.b, kAnyStrides, s.batch, s.length, s.groups, s.states},
      {"c", in.c, kAnyStrides, s.batch, s.length, s.groups, s.states}, {"skip", in.skip, kOptional, s.channels},
      {"initial", in.initial, kOptional, s.batch, s.channels, s.states}}};
}

template <class T> void forward(const SelectiveScanInputs<T>& in, const SelectiveScanOutputs<T>& to, Context& context) {
  constexpr const char* function = "selective_scan_forward";
  Scan<T> s = checked(function, in, context);
  const CallTensor outputs[] = {{"out", to.out, kInRows, s.batch, s.length, s.channels},
      {"final", to.final, kOptional, s.batch, s.channels, s.states},
      {"kept", to.kept, kInRows | kOptional, s.batch, s.chunks, s.states, s.channels}};
  check_tensors(function, {}, inputs_of(in, s));
  SelectiveScanInputs<T> read = in;  // a state that is updated in place is read and written by one item
  if (in.initial.data() == to.final.data() && in.initial.strides() == to.final.strides()) read.initial = {};
  check_tensors(function, outputs, inputs_of(read, s));
  T* sums = nullptr;
  const ScratchLease lease = s.borrow(context, 0, &sums);
  s.forward(to.out, to.final, to.kept, context);
}

template <class T> void backward(const SelectiveScanInputs<T>& in, const View<const T, 4>& kept,
    const View<const T, 3>& dout, const SelectiveScanGradients<T>& g, Context& context) {
  constexpr const char* function = "selective_scan_backward";
  Scan<T> s = checked(function, in, context);
  const CallTensor outputs[] = {{"du", g.du, kInRows | kOptional, s.batch, s.length, s.channels},
      {"ddt", g.ddt, kInRows | kOptional, s.batch, s.length, s.channels}, {"da", g.da, kOptional, s.channels, s.states},
      {"db", g.db, kOptional, s.batch, s.length, s.groups, s.states},
      {"dc", g.dc, kOptional, s.batch, s.length, s.groups, s.states}, {"dskip", g.dskip, kOptional, s.channels},
      {"dinitial", g.dinitial, kOptional, s.batch, s.channels, s.states}};
  const CallTensor more[] = {{"kept", kept, kInRows, s.batch, s.chunks, s.states, s.channels},
      {"dout", dout, kInRows, s.batch, s.length, s.channels},
      {"dfinal", g.dfinal, kOptional, s.batch, s.channels, s.states}};
  check_tensors(function, outputs, inputs_of(in, s));
  check_tensors(function, outputs, more);
  T* sums = nullptr;
  const ScratchLease lease = s.borrow(context, s.of_item(), &sums);
  // Kernels only read it.
  s.backward(dout, g, {const_cast<T*>(kept.data()), kept.sizes(), kept.strides()}, sums, context);
}

}  // namespace

#define QKV_DEFINE(T)                                                                                              \
  void selective_scan_forward(                                                                                     \
      const SelectiveScanInputs<T>& inputs, const SelectiveScanOutputs<T>& outputs, Context& context) {            \
    forward<T>(inputs, outputs, context);                                                                          \
  }                                                                                                                \
  void selective_scan_backward(const SelectiveScanInputs<T>& inputs, View<const T, 4> kept, View<const T, 3> dout, \
      const SelectiveScanGradients<T>& gradients, Context& context) {                                              \
    backward<T>(inputs, kept, dout, gradients, context);                                                           \
  }
QKV_DEFINE(float)
QKV_DEFINE(double)
#undef QKV_DEFINE

}  // namespace qkv::inline v0
