// `qkv attend`: attention over tensors from files, forward and backward. Not: layers with parameters (layer/).
#include <optional>

#include "attend/capture.h"
#include "attend/modifiers.h"
#include "attend/options.h"
#include "attend/parallel.h"
#include "core/escape.h"
#include "support/command.h"
#include "support/files.h"

namespace qkv::cli {
namespace {

/// The tensors as they lie in the files; those that were not given are empty.
struct Inputs {
  std::optional<AnyTensor> q, k, v, dout, bias, keep, drop, sinks;
};

/// Every file that is read.
std::vector<std::string> input_files(const AllAttendOptions& o) {
  std::vector<std::string> files{
      o.in, o.q, o.k, o.v, o.dout, o.bias, o.keep, o.drop, o.modifiers.sinks, o.modifiers.t5, o.modifiers.relative};
  std::erase(files, "");
  return files;
}

std::optional<AnyTensor> read_one(std::string_view option, const std::string& path) {
  if (path.empty()) return {};
  return load_npy(option, path);
}

Inputs read_inputs(const AllAttendOptions& options) {
  if (options.in.empty()) {
    if (options.q.empty() || options.k.empty() || options.v.empty()) {
      throw UsageError("give --q, --k and --v, or all tensors in one file with --in");
    }
    return {read_one("--q", options.q),       read_one("--k", options.k),
            read_one("--v", options.v),       read_one("--dout", options.dout),
            read_one("--bias", options.bias), read_one("--keep", options.keep),
            read_one("--drop", options.drop), read_one("--sinks", options.modifiers.sinks)};
  }
  const StateDict state = load_safetensors("--in", options.in);
  const auto take = [&](std::string_view option, std::string_view name, const std::string& path) -> std::optional<AnyTensor> {
    if (!path.empty()) return load_npy(option, path);
    const AnyTensor* tensor = state.find(name);
    if (tensor == nullptr) return {};
    return tensor->clone();
  };
  Inputs inputs{take("--q", "q", options.q),          take("--k", "k", options.k),
                take("--v", "v", options.v),          take("--dout", "dout", options.dout),
                take("--bias", "bias", options.bias), take("--keep", "keep", options.keep),
                take("--drop", "drop", options.drop), take("--sinks", "sinks", options.modifiers.sinks)};
  for (const auto& [name, tensor] : {std::pair("q", &inputs.q), std::pair("k", &inputs.k), std::pair("v", &inputs.v)}) {
    if (!tensor->has_value()) {
      throw UsageError("--in " + escaped(options.in) + ": a tensor named " + name + " must be there (and q, k, v in all)");
    }
  }
  return inputs;
}

/// Where a tensor came from: `--q "q.npy"`, or `--in "all.safetensors", q`.
std::string place(const AttendOptions& options, const std::string& name, const std::string& path) {
  return path.empty() ? "--in " + escaped(options.in) + ", " + name : "--" + name + " " + escaped(path);
}

/// In the type of q. Any float type is accepted: a bias in f64 is no reason to refuse.
template <class T>
Tensor<T> typed(const std::string& name, const AnyTensor& tensor) {
  if (tensor.sizes.size() != 4) throw UsageError(name + ": must have four axes [B, H, T, D]: got " + tensor.shape());
  const bool is_float =
      tensor.dtype == DType::kF32 || tensor.dtype == DType::kF64 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
  if (!is_float) throw UsageError(name + ": must hold floats: got " + std::string(dtype_name(tensor.dtype)));
  if constexpr (sizeof(T) == sizeof(float)) {
    return to_f32(tensor);
  } else {
    return to_f64(tensor);
  }
}

/// Everything that came out, by name; goes to one .safetensors or to the files named.
struct Results {
  StateDict tensors;
  template <class T>
  void add(const std::string& name, const Tensor<T>& tensor) {
    tensors.add(name, any_tensor(tensor));
  }
};

struct Wanted {
  bool to_safetensors = false;
  std::vector<std::pair<std::string, std::string>> files;  ///< name of the tensor, .npy

  bool file(std::string_view name) const {
    return std::ranges::any_of(files, [&](const auto& one) { return one.first == name; });
  }
};

/// What is to be written, checked before the work.
Wanted name_outputs(const AllAttendOptions& options, bool has_dout, bool has_bias, Outputs& outputs) {
  Wanted wanted;
  wanted.to_safetensors = ending(options.out) == ".safetensors";
  outputs.expect("--out", options.out, {".npy", ".safetensors"});
  if (!wanted.to_safetensors) wanted.files.emplace_back("out", options.out);
  for (const auto& [name, path] : {std::pair<const char*, const std::string&>("weights", options.weights),
                                   {"applied", options.applied},
                                   {"lse", options.lse},
                                   {"dq", options.dq},
                                   {"dk", options.dk},
                                   {"dv", options.dv},
                                   {"dbias", options.dbias},
                                   {"dsinks", options.modifiers.dsinks},
                                   {"dposition", options.modifiers.dposition}}) {
    if (path.empty()) continue;
    outputs.expect(std::string("--") + name, path, {".npy"});
    wanted.files.emplace_back(name, path);
    if (name[0] == 'd' && !has_dout) throw UsageError(std::string("--") + name + " needs the output's gradient: add --dout");
  }
  if (wanted.file("dbias") && !has_bias) throw UsageError("--dbias needs --bias");
  if (!wanted.to_safetensors) {
    if (options.wants_weights && options.weights.empty()) throw UsageError("--weights needs the name of a .npy file");
    if (options.wants_applied && options.applied.empty()) throw UsageError("--applied needs the name of a .npy file");
    const bool any = std::ranges::any_of(wanted.files, [](const auto& one) { return one.first[0] == 'd'; });
    if (has_dout && !any && options.in.empty() && options.capture.of != "gradient")
      throw UsageError("--dout needs a place for gradients: add --dq, --dk, --dv, --dbias, --dsinks or --dposition");
  }
  return wanted;
}

template <class T>
Results compute(const AllAttendOptions& options, const Inputs& inputs, const Wanted& wanted, Look& look) {
  const Tensor<T> q = typed<T>(place(options, "q", options.q), *inputs.q),
                  k = typed<T>(place(options, "k", options.k), *inputs.k),
                  v = typed<T>(place(options, "v", options.v), *inputs.v);
  std::optional<Tensor<T>> bias;
  std::optional<Tensor<std::uint8_t>> keep, drop;
  Mask mask = structural_mask(options, q.size(2), k.size(2));
  if (inputs.keep) mask = mask & dense_mask("--keep", keep.emplace(to_bool(*inputs.keep)), options.mask_axes, true);
  if (inputs.drop) mask = mask & dense_mask("--drop", drop.emplace(to_bool(*inputs.drop)), options.mask_axes, false);
  AttentionOptions attention = attention_options(options, std::move(mask));
  if (inputs.bias) attention.bias = bias.emplace(typed<T>(place(options, "bias", options.bias), *inputs.bias));
  Modifiers<T> modifiers(options.modifiers, inputs.sinks, q.size(1), attention);
  Context context(options.compute.context());

  Results results;
  Tensor<T> out({q.size(0), q.size(1), q.size(2), v.size(3)});
  Tensor<T> lse({q.size(0), q.size(1), q.size(2)});
  AttentionOptions watched = attention;
  watched.capture = look.request(k.size(2));
  // One pass over the scores gives the output and one kind of weights, bit-identical to one pass for each.
  const auto weights_of = [&] { return Tensor<T>({q.size(0), q.size(1), q.size(2), k.size(2)}); };
  AttentionOutputs<T> outputs{.out = out, .lse = lse};
  std::optional<Tensor<T>> weights;
  if (options.wants_weights || options.wants_applied) {
    outputs.weights = weights.emplace(weights_of());
    outputs.kind = options.wants_weights ? WeightsKind::kSoftmax : WeightsKind::kApplied;
  }
  attention_forward(q, k, v, outputs, watched, context);
  if (weights) results.add(options.wants_weights ? "weights" : "applied", *weights);
  if (options.wants_weights && options.wants_applied) {
    Tensor<T> applied = weights_of();
    attention_forward(q, k, {}, {.weights = applied, .kind = WeightsKind::kApplied}, attention, context);
    results.add("applied", applied);
  }
  if (inputs.dout && (wanted.to_safetensors || wanted.files.size() > 1 || look.needs_backward())) {
    const Tensor<T> dout = typed<T>(place(options, "dout", options.dout), *inputs.dout);
    Tensor<T> dq(q.sizes()), dk(k.sizes()), dv(v.sizes()), dbias;
    AttentionGradients<T> gradients{.dq = dq, .dk = dk, .dv = dv};
    if (bias) {
      dbias = Tensor<T>(bias->sizes());
      gradients.dbias = dbias;
    }
    modifiers.want_gradients(attention, gradients);
    attention_backward(q, k, v, out, lse, dout, gradients, watched, context);
    results.add("dq", dq);
    results.add("dk", dk);
    results.add("dv", dv);
    if (bias) results.add("dbias", dbias);
    if (modifiers.dsinks.data() != nullptr) results.add("dsinks", modifiers.dsinks);
    if (modifiers.dposition.data() != nullptr) results.add("dposition", modifiers.dposition);
  }
  results.add("out", out);
  results.add("lse", lse);
  return results;
}

int run_attend(const AllAttendOptions& options) {
  if (options.parallel.any()) {
    run_ranks("attend", options.parallel, options.compute, [&](Ranks& ranks) { attend_on_ranks(options, ranks); });
    return 0;
  }
  if (!options.in.empty() && ending(options.in) != ".safetensors") throw UsageError("--in must be a .safetensors file");
  const Inputs inputs = read_inputs(options);
  Outputs outputs;
  std::string names;  // of the files whose shapes may not fit together
  for (const std::string& path : input_files(options)) {
    outputs.protect(path);
    names += (names.empty() ? "" : ", ") + escaped(path);
  }
  const Wanted wanted = name_outputs(options, inputs.dout.has_value(), inputs.bias.has_value(), outputs);
  if (inputs.q->dtype != DType::kF32 && inputs.q->dtype != DType::kF64) {
    throw UsageError(place(options, "q", options.q) + ": must be f32 or f64, which the outputs then are: got " +
                     std::string(dtype_name(inputs.q->dtype)));
  }
  if (!options.mask_axes.empty() && !inputs.keep && !inputs.drop) throw UsageError("--mask-axes needs --keep or --drop");
  Look look(options.capture, inputs.dout.has_value(), outputs);
  const Results results = about<ShapeError>(names, [&] {
    return inputs.q->dtype == DType::kF32 ? compute<float>(options, inputs, wanted, look)
                                          : compute<double>(options, inputs, wanted, look);
  });
  look.write(inputs.q->sizes[2], outputs);
  for (const auto& [name, path] : wanted.files) outputs.add_npy(path, results.tensors.at(name));
  if (wanted.to_safetensors) outputs.add_safetensors(options.out, results.tensors);
  outputs.commit();
  return 0;
}

std::function<int()> declare_attend(CLI::App& app) {
  auto options = std::make_shared<AllAttendOptions>();
  add_attend_options(app, *options);
  add_modifier_options(app, options->modifiers);
  add_capture_options(app, options->capture);
  add_attend_parallel_options(app, *options);
  return [options] { return run_attend(*options); };
}

const bool attend_added = add_command({"attend", "Attention over tensors from files, forward and backward",
                                       "qkv attend --q q.npy --k k.npy --v v.npy --out out.npy --causal", declare_attend});

}  // namespace
}  // namespace qkv::cli
