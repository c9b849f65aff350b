// `qkv attend`: attention over tensors from files, forward and backward.
#include <fmt/format.h>

#include "attend/parallel.h"
#include "attend/sha256.h"
#include "core/escape.h"
#include "support/command.h"
#include "support/files.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

/// The tensors as they lie in the files, by name.
using Inputs = std::map<std::string, AnyTensor>;

Inputs read_inputs(const AttendOptions& options) {
  if (!options.in.empty() && ending(options.in) != ".safetensors") throw UsageError("--in must be a .safetensors file");
  Inputs inputs;
  const StateDict state = options.in.empty() ? StateDict() : load_safetensors("--in", options.in);
  for (const StateDict::Entry& entry : state.entries()) require_known(options, entry.name);
  for (const char* name : kInputs) {
    const std::string& path = options.file(name);
    const AnyTensor* const tensor = state.find(name);
    if (tensor != nullptr && !path.empty())
      throw UsageError("--" + std::string(name) + " and " + name + " in --in " + escaped(options.in) + ": give one");
    if (!path.empty()) inputs.emplace(name, load_npy("--" + std::string(name), path));
    if (tensor != nullptr) inputs.emplace(name, tensor->clone());
  }
  for (const char* name : {"q", "k", "v"}) {
    if (inputs.contains(name)) continue;
    if (options.in.empty()) throw UsageError("give --q, --k and --v, or all tensors in one file with --in");
    throw UsageError(
        "--in " + escaped(options.in) + ": a tensor named " + name + " must be there (and q, k, v in all)");
  }
  return inputs;
}

using Files = std::map<std::string, std::string>;  // name of a tensor -> .npy

bool wants_gradients(const AttendOptions& options, const Files& files) {
  return options.hash || ending(options.out) == ".safetensors" ||
         std::ranges::any_of(files, [](const auto& one) { return one.first[0] == 'd'; });
}

/// The files to write, checked before the work.
Files name_outputs(const AttendOptions& options, const Inputs& inputs, Outputs& outputs) {
  const bool has_dout = inputs.contains("dout"), one_file = ending(options.out) == ".safetensors";
  outputs.expect("--out", options.out, {".npy", ".safetensors"});
  Files files = options.written;
  for (const auto& [name, path] : {std::pair("weights", options.weights), {"applied", options.applied}}) {
    if (path && path->empty() && !one_file && !options.hash)
      throw UsageError(std::string("--") + name + " needs the name of a .npy file");
    files[name] = path.value_or("");
  }
  std::erase_if(files, [](const auto& one) { return one.second.empty(); });
  for (const auto& [name, path] : files) {
    outputs.expect("--" + name, path, {".npy"});
    if (name[0] == 'd' && !has_dout) throw UsageError("--" + name + " needs the output's gradient: add --dout");
  }
  if (files.contains("dbias") && !inputs.contains("bias")) throw UsageError("--dbias needs --bias");
  if (has_dout && !wants_gradients(options, files))
    throw UsageError((options.file("dout").empty() ? "dout in --in " + escaped(options.in) : "--dout") +
                     " needs a file for gradients: add --dq, --dk, --dv or --dbias");
  if (!one_file && !options.out.empty()) files["out"] = options.out;
  return files;
}

/// Everything that comes out, by name.
template <class T> StateDict compute(const AttendOptions& options, const Inputs& inputs, bool backward) {
  const auto input = [&](const std::string& name) { return typed<T>(options.source(name), inputs.at(name)); };
  const Tensor<T> q = input("q"), k = input("k"), v = input("v");
  Tensor<std::uint8_t> keep, drop;
  Mask mask = structural_mask(options, q.size(0), q.size(2), k.size(2));
  if (inputs.contains("keep"))
    mask = mask & dense_mask(options.source("keep"), keep = to_bool(inputs.at("keep")), options.dense.axes, true);
  if (inputs.contains("drop"))
    mask = mask & dense_mask(options.source("drop"), drop = to_bool(inputs.at("drop")), options.dense.axes, false);
  AttentionOptions attention = attention_options(options, std::move(mask));
  Tensor<T> bias, dbias;
  if (inputs.contains("bias")) attention.bias = bias = input("bias");
  Context context(options.compute.context());

  StateDict results;
  const auto add = [&](const std::string& name, const Tensor<T>& tensor) { results.add(name, any_tensor(tensor)); };
  Tensor<T> out({q.size(0), q.size(1), q.size(2), v.size(3)}), lse({q.size(0), q.size(1), q.size(2)}), weights, applied;
  // One pass over the scores gives the output and one kind of weights, bit-identical to one pass for each.
  AttentionOutputs<T> outputs{.out = out, .lse = lse};
  const std::vector<Index> square{q.size(0), q.size(1), q.size(2), k.size(2)};
  if (options.weights) outputs.weights = weights = Tensor<T>(square);
  if (options.applied) applied = Tensor<T>(square);
  if (options.applied && !options.weights) outputs.weights = applied, outputs.kind = WeightsKind::kApplied;
  attention_forward(q, k, v, outputs, attention, context);
  if (options.applied && options.weights)
    attention_forward(q, k, {}, {.weights = applied, .kind = WeightsKind::kApplied}, attention, context);
  if (options.weights) add("weights", weights);
  if (options.applied) add("applied", applied);
  if (backward) {
    const Tensor<T> dout = input("dout");
    Tensor<T> dq(q.sizes()), dk(k.sizes()), dv(v.sizes());
    AttentionGradients<T> gradients{.dq = dq, .dk = dk, .dv = dv};
    if (bias.rank() > 0) gradients.dbias = dbias = Tensor<T>(bias.sizes());
    attention_backward(q, k, v, out, lse, dout, gradients, attention, context);
    add("dq", dq);
    add("dk", dk);
    add("dv", dv);
    if (bias.rank() > 0) add("dbias", dbias);
  }
  add("out", out);
  add("lse", lse);
  return results;
}

/// A line for each output: name, shape, type, hash.
void print_hashes(const StateDict& results) {
  for (const char* name : {"out", "lse", "weights", "applied", "dq", "dk", "dv", "dbias"}) {
    const AnyTensor* const found = results.find(name);
    if (found == nullptr) continue;
    const std::string hash = found->dtype == DType::kF32 ? hash_of_numbers<float>(to_f32(*found).span())
                                                         : hash_of_numbers<double>(to_f64(*found).span());
    print_line(fmt::format("{} {} {} {}", name, found->shape(), dtype_name(found->dtype), hash));
  }
}

int run_attend(const AttendOptions& options) {
  if (options.out.empty() && !options.hash) throw UsageError("--out is required, or --hash");
  if (options.parallel.any()) {
    static_cast<void>(parse_method(options.parallel.method));
    run_ranks("attend", options.parallel, options.compute, [&](Ranks& ranks) { attend_on_ranks(options, ranks); });
    return 0;
  }
  const Inputs inputs = read_inputs(options);
  const AnyTensor& q = inputs.at("q");
  Outputs outputs;
  std::vector<std::string> read{options.in};
  for (const char* name : kInputs) read.push_back(options.file(name));
  std::string names;  // of the files whose shapes may not fit together
  for (const std::string& path : read) {
    outputs.protect(path);
    if (!path.empty()) names += (names.empty() ? "" : ", ") + escaped(path);
  }
  const auto files = name_outputs(options, inputs, outputs);
  if (q.dtype != DType::kF32 && q.dtype != DType::kF64) {
    throw UsageError(options.source("q") + ": must be f32 or f64, which the outputs then are: got " +
                     std::string(dtype_name(q.dtype)));
  }
  options.dense.check(inputs.contains("keep") || inputs.contains("drop"));
  const bool backward = inputs.contains("dout") && wants_gradients(options, files);
  const StateDict results = about<ShapeError>(
      names, [&] { return (q.dtype == DType::kF32 ? compute<float> : compute<double>)(options, inputs, backward); });
  for (const auto& [name, path] : files) outputs.add_npy(path, results.at(name));
  if (ending(options.out) == ".safetensors") outputs.add_safetensors(options.out, results);
  outputs.commit();
  if (options.hash) print_hashes(results);
  return 0;
}

const bool attend_added = add_command({"attend", "Attention over tensors from files, forward and backward",
                                          "qkv attend --q q.npy --k k.npy --v v.npy --out out.npy --causal"},
    add_attend_options, run_attend);

}  // namespace
}  // namespace qkv::cli
