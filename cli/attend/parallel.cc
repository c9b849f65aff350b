#include "attend/parallel.h"

#include <numeric>
#include <optional>

#include "core/escape.h"
#include "qkv/io/safetensors.h"
#include "ranks/methods.h"
#include "ranks/shared_file.h"
#include "support/files.h"

namespace qkv::cli {
namespace {

/// A tensor [B, H, T, D] of which a rank has some rows: each piece of bytes, by its offset in the whole tensor and in
/// the share.
struct Cut {
  Index batch, heads, length, width;
  const std::vector<dist::Rows>& rows;
  std::size_t element_bytes;

  Index local_length() const {
    return std::accumulate(
        rows.begin(), rows.end(), Index{0}, [](Index sum, const dist::Rows& some) { return sum + some.count(); });
  }
  /// body(byte in the whole, byte in the share, number of bytes)
  template <class Body> void each(const Body& body) const {
    const auto row_bytes = static_cast<std::uint64_t>(width) * element_bytes;
    std::uint64_t share = 0;
    for (Index head = 0; head < batch * heads; ++head) {
      for (const dist::Rows& some : rows) {
        const auto bytes = static_cast<std::uint64_t>(some.count()) * row_bytes;
        body(static_cast<std::uint64_t>(head * length + some.begin) * row_bytes, share, bytes);
        share += bytes;
      }
    }
  }
};

/// The file's tensors, and the rows of them that this rank has.
struct Reader {
  const AttendOptions& options;
  io::SafetensorsParts parts;

  std::string source(const std::string& name) const { return "--in " + escaped(options.in) + ", " + name; }

  const io::TensorEntry& tensor(const std::string& name) const {
    const io::TensorEntry* const found = parts.find(name);
    if (found == nullptr)
      throw UsageError(
          "--in " + escaped(options.in) + ": a tensor named " + name + " must be there (and q, k, v in all)");
    if (found->sizes.size() != 4)
      throw UsageError(source(name) + ": must have four axes [B, H, T, D]: got " + std::to_string(found->sizes.size()));
    return *found;
  }

  std::optional<AnyTensor> whole(const std::string& name) const {
    const io::TensorEntry* const found = parts.find(name);
    if (found == nullptr) return {};
    AnyTensor all;
    all.dtype = found->dtype;
    all.sizes = found->sizes;
    all.bytes.resize(found->bytes());
    parts.read(*found, 0, all.bytes);
    return all;
  }

  /// This rank's rows, in type T.
  template <class T> Tensor<T> rows(const std::string& name, const std::vector<dist::Rows>& rows) const {
    const io::TensorEntry& from = tensor(name);
    const Cut cut{from.sizes[0], from.sizes[1], from.sizes[2], from.sizes[3], rows, dtype_bytes(from.dtype)};
    AnyTensor share;
    share.dtype = from.dtype;
    share.sizes = {cut.batch, cut.heads, cut.local_length(), cut.width};
    share.bytes.resize(
        static_cast<std::size_t>(cut.batch * cut.heads * cut.local_length() * cut.width) * cut.element_bytes);
    cut.each([&](std::uint64_t at, std::uint64_t to, std::uint64_t bytes) {
      parts.read(from, at, std::span(share.bytes).subspan(to, bytes));
    });
    return typed<T>(source(name), share);
  }
};

/// A written tensor: its bytes here, how they are cut, or whole on the first rank.
struct Result {
  std::string name;
  std::vector<Index> sizes;  ///< of the whole
  std::span<const std::byte> bytes;
  const std::vector<dist::Rows>* rows = nullptr;  ///< none: the first rank has it all
};

void write_results(const AttendOptions& options, const Ranks& ranks, DType dtype, const std::vector<Result>& results) {
  std::vector<io::TensorEntry> entries;
  for (const Result& one : results) entries.push_back({one.name, dtype, one.sizes, 0});
  const io::SafetensorsPlan plan = io::plan_safetensors(std::move(entries));
  SharedFile file(ranks, options.out, plan.bytes);
  if (ranks.first()) file.write(0, plan.head);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& one = results[i];
    const std::uint64_t at = plan.tensors[i].at;
    if (one.rows == nullptr) {
      if (ranks.first()) file.write(at, one.bytes);
      continue;
    }
    const Cut cut{one.sizes[0], one.sizes[1], one.sizes[2], one.sizes.size() == 4 ? one.sizes[3] : 1, *one.rows,
        dtype_bytes(dtype)};
    cut.each([&](std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
      file.write(at + to, one.bytes.subspan(from, bytes));
    });
  }
  file.commit();
}

/// What one process checks, of the whole tensors: a rank reads as many rows of v as of k, and of dout as of q, which
/// fit whatever the lengths are.
void check_lengths(const Reader& reader) {
  const io::TensorEntry &q = reader.tensor("q"), &k = reader.tensor("k"), &v = reader.tensor("v");
  const auto wants = [](const io::TensorEntry& tensor, const std::vector<Index>& sizes, const std::string& what) {
    const auto shape = [](const std::vector<Index>& of) { return shape_text(of.data(), static_cast<int>(of.size())); };
    if (tensor.sizes != sizes)
      throw ShapeError(tensor.name + " must be " + shape(sizes) + what + ": got " + shape(tensor.sizes));
  };
  wants(v, {k.sizes[0], k.sizes[1], k.sizes[2], v.sizes[3]}, ", with the batch, heads and length of k");
  if (reader.parts.find("dout") != nullptr)
    wants(reader.tensor("dout"), {q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]}, ", the shape of the output");
}

template <class T> void attend(const AttendOptions& options, const Ranks& ranks, const Reader& reader) {
  check_lengths(reader);
  const std::vector<Index> q_sizes = reader.tensor("q").sizes, k_sizes = reader.tensor("k").sizes,
                           v_sizes = reader.tensor("v").sizes;
  Context context(ranks.context());
  Mask mask = structural_mask(options, q_sizes[0], q_sizes[2], k_sizes[2]);
  const dist::ContextParallelOptions cut = parse_cut(options.cut, options.parallel.method, !options.causal.empty());
  dist::ContextParallel parallel(ranks.transport(), cut, context);
  const std::vector<dist::Rows> queries = parallel.rows(q_sizes[2]), keys = parallel.rows(k_sizes[2]);
  const Tensor<T> q = reader.rows<T>("q", queries), k = reader.rows<T>("k", keys), v = reader.rows<T>("v", keys);

  // Not cut: every rank has it whole.
  std::optional<Tensor<std::uint8_t>> keep, drop;
  const auto any_keep = reader.whole("keep"), any_drop = reader.whole("drop");
  if (any_keep)
    mask = mask & dense_mask(reader.source("keep"), keep.emplace(to_bool(*any_keep)), options.dense.axes, true);
  if (any_drop)
    mask = mask & dense_mask(reader.source("drop"), drop.emplace(to_bool(*any_drop)), options.dense.axes, false);
  AttentionOptions attention = attention_options(options, std::move(mask));
  Tensor<T> bias, dbias;
  if (const auto given = reader.whole("bias")) attention.bias = bias = typed<T>(reader.source("bias"), *given);

  Tensor<T> out({q.size(0), q.size(1), q.size(2), v.size(3)}), lse({q.size(0), q.size(1), q.size(2)});
  parallel.forward(q, k, v, out, lse, attention);

  std::vector<Result> results;
  const auto bytes_of = [](const Tensor<T>& tensor) { return std::as_bytes(tensor.span()); };
  Tensor<T> dq, dk, dv;
  if (reader.parts.find("dout") != nullptr) {
    const Tensor<T> dout = reader.rows<T>("dout", queries);
    dq = Tensor<T>(q.sizes());
    dk = Tensor<T>(k.sizes());
    dv = Tensor<T>(v.sizes());
    AttentionGradients<T> gradients{.dq = dq, .dk = dk, .dv = dv};
    if (bias.rank() > 0) gradients.dbias = dbias = Tensor<T>(bias.sizes());
    parallel.backward(q, k, v, out, lse, dout, gradients, attention);
    results.push_back({"dq", q_sizes, bytes_of(dq), &queries});
    results.push_back({"dk", k_sizes, bytes_of(dk), &keys});
    results.push_back({"dv", v_sizes, bytes_of(dv), &keys});
    if (bias.rank() > 0) results.push_back({"dbias", dbias.sizes(), bytes_of(dbias)});
  }
  results.push_back({"out", {q_sizes[0], q_sizes[1], q_sizes[2], v_sizes[3]}, bytes_of(out), &queries});
  results.push_back({"lse", {q_sizes[0], q_sizes[1], q_sizes[2]}, bytes_of(lse), &queries});
  write_results(options, ranks, sizeof(T) == sizeof(float) ? DType::kF32 : DType::kF64, results);
}

/// Options of one machine only, by name.
void refuse_uncut(const AttendOptions& options) {
  if (options.in.empty() || ending(options.in) != ".safetensors" || ending(options.out) != ".safetensors")
    throw UsageError(
        "--parallel needs one file for all tensors in and one out: --in FILE.safetensors --out FILE.safetensors");
  for (const char* name : {"q", "k", "v", "dout", "bias", "keep", "drop", "lse", "dq", "dk", "dv", "dbias"}) {
    if (!options.file(name).empty())
      throw UsageError(
          "--" + std::string(name) + " is not read or written by ranks: leave it out, or put the tensor into --in");
  }
  if (options.weights || options.applied)
    throw UsageError("--weights and --applied are for one machine: leave out --parallel");
  if (options.hash)
    throw UsageError("--hash is for one machine: leave out --parallel, or hash the file that ranks write");
}

}  // namespace

void attend_on_ranks(const AttendOptions& options, const Ranks& ranks) {
  refuse_uncut(options);
  Outputs outputs;
  outputs.protect(options.in);
  outputs.expect("--out", options.out, {".safetensors"});
  parse_cut(options.cut, options.parallel.method, !options.causal.empty());  // refuses before anything is read
  const Reader reader{options, about_file("--in", options.in, [&] { return io::SafetensorsParts(options.in); })};
  std::string tensors;
  for (const io::TensorEntry& tensor : reader.parts.tensors()) {
    require_known(options, tensor.name);
    tensors += " " + escaped(tensor.name) + " " + std::string(dtype_name(tensor.dtype));
    for (const Index size : tensor.sizes) tensors += " " + std::to_string(size);
  }
  ranks.agree({{"tensors in --in", tensors}, {"--out", options.out}});
  options.dense.check(reader.parts.find("keep") != nullptr || reader.parts.find("drop") != nullptr);
  const DType dtype = reader.tensor("q").dtype;
  if (dtype != DType::kF32 && dtype != DType::kF64)
    throw UsageError(
        reader.source("q") + ": must be f32 or f64, which the outputs then are: got " + std::string(dtype_name(dtype)));
  about<ShapeError>("--in " + escaped(options.in), [&] {
    if (dtype == DType::kF32) {
      attend<float>(options, ranks, reader);
    } else {
      attend<double>(options, ranks, reader);
    }
  });
}

}  // namespace qkv::cli
