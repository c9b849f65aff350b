// A work item is (sequence, block of queries, part of the keys): products by Linear's kernel, a block of keys at a
// time, and of each query the best k so far. The order is total, of (score, key), so neither parts nor
// threads change the choice.
#include "qkv/top_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/mask/node.h"
#include "attention/mask/summary.h"
#include "core/check.h"
#include "core/overlap.h"
#include "core/threads/region.h"
#include "core/threads/scratch.h"
#include "dispatch/kernels.h"
#include "kernels/carver.h"

namespace qkv::inline v0 {
namespace {

constexpr const char* kTopKeys = "top_keys";
constexpr Index kBlockRows = 64;    // rows (heads x queries) of a product, where there are as many
constexpr Index kKeysAtOnce = 128;  // as many as a mask answers for at once
constexpr Index kPartKeys = 4096;

struct Scored {
  float score;
  std::int32_t key;
};
bool better(const Scored& a, const Scored& b) { return a.score != b.score ? a.score > b.score : a.key < b.key; }

/// The best k of all that were added in ascending order of keys, and perhaps some more.
struct Best {
  Scored* list;  // [2 k]
  Index k, count = 0;
  float bar = -std::numeric_limits<float>::infinity();  // of k attended keys none is worse

  void add(Scored one) {
    if (count >= k && !(one.score > bar)) return;
    list[count++] = one;
    if (count == 2 * k) keep_best();
  }
  void keep_best() {
    if (count <= k) return;
    std::nth_element(list, list + k - 1, list + count, better);
    count = k;
    bar = list[k - 1].score;
  }
};

struct TopKeys {
  const AnyView &q, &k;
  const View<const float, 3>& weights;
  const View<std::int32_t, 4>& index;
  BoundMask mask;
  const CacheTable& cache;
  const ProductKernels<float>& product;
  Index queries;  // of a block

  Index blocks() const { return (q.size(2) + queries - 1) / queries; }
  Index count() const { return index.size(3); }

  MatrixProduct<float> product_of(
      const float* rows, const float* keys, Index keys_stride, Index num_rows, Index num_keys, float* scores) const {
    MatrixProduct<float> p{};
    p.a = rows;
    p.b = keys;
    p.c = scores;
    p.rows = p.all_rows = num_rows;
    p.columns = num_keys;
    p.depth = q.size(3);
    p.a_row = q.size(3);
    p.a_depth = 1;
    p.b_row = 1;
    p.b_column = keys_stride;
    p.c_row = kKeysAtOnce;
    p.invariant = true;
    return p;
  }

  struct Own {
    float *rows, *keys, *scores;  // [heads * queries][D], [kKeysAtOnce][D], [heads * queries][kKeysAtOnce]
    Scored* lists;                // [queries][2 k]
    std::byte* product;
  };
  std::size_t carve(std::byte* base, Own& own) const {
    Carver carver(base);
    const Index rows = q.size(1) * queries;
    own.rows = carver.array<float>(rows * q.size(3));
    own.keys = carver.array<float>(kKeysAtOnce * q.size(3));
    own.scores = carver.array<float>(rows * kKeysAtOnce);
    own.lists = carver.array<Scored>(queries * 2 * count());
    std::size_t most = 0;
    for (const Index num_rows : {rows, q.size(1) * ((q.size(2) - 1) % queries + 1)}) {
      most = std::max(
          most, product.scratch_bytes(product_of(own.rows, own.keys, q.size(3), num_rows, kKeysAtOnce, own.scores)));
    }
    own.product = carver.array<std::byte>(static_cast<Index>(most));
    return carver.used();
  }

  /// `number` rows as floats.
  void read(const std::byte* rows, Index stride, Index number, Index width, float* to) const {
    HeadKeys head{};
    head.type = q.type;
    head.num_pages = 1;
    head.page_rows = head.held.end = number;
    cache.read(head, {rows, nullptr, 0, stride, 0}, 0, number, width, to);
  }

  /// Scores of a block of keys become candidates of `number` queries from i0 on.
  void add_block(Index b, Index i0, Index number, Index j0, Index nj, const Own& own, Best* best) const {
    std::uint32_t lane_masks[kKeysAtOnce];
    const int verdict = mask.keeps_all() ? kTileFull : mask_tile(&mask, b, 0, i0, number, j0, nj, lane_masks);
    if (verdict == kTileEmpty) return;
    read(k.at(b, j0), k.stride(1), nj, q.size(3), own.keys);
    const Index heads = q.size(1);
    product.run(product_of(own.rows, own.keys, q.size(3), heads * number, nj, own.scores), own.product);
    for (Index i = 0; i < number; ++i) {
      float total[kKeysAtOnce] = {};
      for (Index h = 0; h < heads; ++h) {
        const float weight = weights(b, h, i0 + i);
        const float* scores = own.scores + (h * number + i) * kKeysAtOnce;
        for (Index j = 0; j < nj; ++j) total[j] += weight * (scores[j] < 0 ? 0.0F : scores[j]);
      }
      for (Index j = 0; j < nj; ++j) {
        if (verdict == kTilePartial && (lane_masks[j] >> i & 1U) == 0) continue;
        const float score = std::isnan(total[j]) ? std::numeric_limits<float>::infinity() : total[j];
        best[i].add({score, static_cast<std::int32_t>(j0 + j)});
      }
    }
  }

  /// The best of keys [begin, end) for a block of queries.
  Index run(Index b, Index i0, Index begin, Index end, const Own& own, Best* best) const {
    const Index number = std::min(queries, q.size(2) - i0);
    for (Index i = 0; i < number; ++i) best[i] = {own.lists + i * 2 * count(), count()};
    for (Index h = 0; h < q.size(1); ++h) {
      read(q.at(b, h, i0), q.stride(2), number, q.size(3), own.rows + h * number * q.size(3));
    }
    for (Index j0 = begin; j0 < end; j0 += kKeysAtOnce) {
      if (!mask.keeps_all()) j0 = std::max(j0, mask_next_key(&mask, b, 0, i0, number, j0) / kKeysAtOnce * kKeysAtOnce);
      if (j0 < end) add_block(b, i0, number, j0, std::min(kKeysAtOnce, end - j0), own, best);
    }
    for (Index i = 0; i < number; ++i) best[i].keep_best();
    return number;
  }

  void write(Index b, Index i, const Best& best) const {
    std::sort(best.list, best.list + best.count, [](const Scored& x, const Scored& y) { return x.key < y.key; });
    for (Index n = 0; n < count(); ++n) index(b, 0, i, n) = n < best.count ? best.list[n].key : -1;
  }
};

}  // namespace

void detail::top_keys(const AnyView& q, const AnyView& k, const View<const float, 3>& weights,
    const View<std::int32_t, 4>& index, const TopKeysOptions& options, Context& context) {
  const NamedBox outputs[] = {{"index", index}}, inputs[] = {{"q_index", q}, {"k_index", k}, {"weights", weights}};
  check_outputs(kTopKeys, outputs, inputs);
  const Index batch = q.size(0), q_len = q.size(2), kv_len = k.size(1), best_k = index.size(3);
  check<ShapeError>(k.size(0) == batch && k.size(2) == q.size(3), kTopKeys,
      "k_index must be [B, Tk, D] for q_index [B, H, Tq, D]: got q_index ", q, ", k_index ", k);
  check<ShapeError>(weights.sizes() == View<const float, 3>::Sizes{batch, q.size(1), q_len}, kTopKeys,
      "weights must be [B, H, Tq]: got ", weights, " for q_index ", q);
  check<ShapeError>(index.sizes() == View<std::int32_t, 4>::Sizes{batch, 1, q_len, best_k} && best_k >= 1, kTopKeys,
      "index must be [B, 1, Tq, k] with k at least 1: got ", index, " for q_index ", q);
  check<ShapeError>(
      q.stride(3) == 1 || q.size(3) == 1, kTopKeys, "the last axis of q_index must have stride 1: got ", q.stride(3));
  check<ShapeError>(
      k.stride(2) == 1 || k.size(2) == 1, kTopKeys, "the last axis of k_index must have stride 1: got ", k.stride(2));
  check<ShapeError>(q.size(1) >= 1 && q.size(3) >= 1, kTopKeys, "q_index must have heads and a width: got ", q);
  check<OptionError>(
      kv_len <= std::numeric_limits<std::int32_t>::max(), kTopKeys, "keys must be numbered by int32: got ", kv_len);
  const BoundMask bound{options.mask.node(), {batch, 1, q_len, kv_len}};
  check_mask(options.mask, bound.extent, kTopKeys);
  const KernelTables& tables = kernel_tables(context);
  TopKeys job{q, k, weights, index, bound, tables.cache, tables.attention.layers.product,
      std::clamp<Index>(kBlockRows / q.size(1), 1, 32)};
  job.queries = std::min(job.queries, std::max<Index>(1, q_len));
  const Index items = batch * job.blocks();
  if (items == 0) return;
  DenseSummaries dense;
  job.mask.extent.summaries = dense.make(options.mask.node(), context);
  const Index threads = context.threads();
  const Index parts = items < 2 * threads ? std::max<Index>(1, (kv_len + kPartKeys - 1) / kPartKeys) : 1;
  TopKeys::Own own{};
  Scored *found = nullptr, *merged = nullptr;  // [items][parts][queries][k] and [2 k], with more than one part
  Index* found_count = nullptr;
  const Index cells = parts > 1 ? items * parts * job.queries : 0;
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    found = carver.array<Scored>(cells * best_k);
    found_count = carver.array<Index>(cells);
    merged = carver.array<Scored>(parts > 1 ? 2 * best_k : 0);
    return carver.used();
  };
  const ScratchLease scratch = borrow_scratch(context, carve(nullptr));
  carve(scratch.data());
  const double flops = static_cast<double>(batch * q_len) * static_cast<double>(kv_len) *
                       static_cast<double>(q.size(1) * (2 * q.size(3) + 4));
  const Index part_keys = parts > 1 ? kPartKeys : kv_len;
  run_items(context, {items * parts, flops, job.carve(nullptr, own)}, [&](Index number, std::byte* memory) {
    TopKeys::Own mine{};
    job.carve(memory, mine);
    Best best[32];
    const Index item = number / parts, part = number % parts, b = item / job.blocks(),
                i0 = item % job.blocks() * job.queries;
    const Index done = job.run(b, i0, part * part_keys, std::min(kv_len, (part + 1) * part_keys), mine, best);
    for (Index i = 0; i < done; ++i) {
      if (parts == 1) {
        job.write(b, i0 + i, best[i]);
      } else {
        const Index cell = number * job.queries + i;
        std::copy_n(best[i].list, best[i].count, found + cell * best_k);
        found_count[cell] = best[i].count;
      }
    }
  });
  if (parts == 1) return;
  for (Index item = 0; item < items; ++item) {
    const Index i0 = item % job.blocks() * job.queries;
    for (Index i = 0; i < std::min(job.queries, q_len - i0); ++i) {
      Best best{merged, best_k};
      for (Index part = 0; part < parts;
           ++part) {  // within a part keys are in any order, but all after those of the parts before
        const Index cell = (item * parts + part) * job.queries + i;
        for (Index n = 0; n < found_count[cell]; ++n) {
          best.list[best.count++] = found[cell * best_k + n];
          if (best.count == 2 * best_k) best.keep_best();
        }
      }
      best.keep_best();
      job.write(item / job.blocks(), i0 + i, best);
    }
  }
}

}  // namespace qkv::inline v0
