#include "nn/parameters/synonyms.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"

namespace qkv::inline v0::nn {
namespace {

/// Families of names, by Role. Loading accepts every entry of a column in that role, mixed or not; when a file lacks
/// one, the name to expect is that of the first family whose names it uses.
using Family = std::array<std::string_view, kNumRoles>;
constexpr std::array<Family, 16> kSpellings = {{
    {"query_proj", "key_proj", "value_proj", "proj", "output_proj"},  // the ladder V1..V4
    {"q_proj", "k_proj", "v_proj", "proj", "o_proj"},                 // multi-head, Llama
    {"q_proj", "k_proj", "v_proj", "in_proj", "out_proj"},            // torch.nn.MultiheadAttention
    {"W_Q", "W_K", "W_V", "proj", "W_O"},
    {"W_q", "W_k", "W_v", "proj", "W_o"},
    {"query_proj", "key_proj", "value_proj", "in_proj", "out_proj"},
    {"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"},  // Phi-3
    {"q_proj", "k_proj", "v_proj", "Wqkv", "out_proj"},    // flash-attn
    {"query", "key", "value", "c_attn", "c_proj"},         // nanoGPT
    {"query", "key", "value", "qkv", "proj"},              // timm, minGPT
    {"to_q", "to_k", "to_v", "to_qkv", "to_out"},          // vision transformers
    {"to_q", "to_k", "to_v", "to_qkv", "to_out.0"},        // diffusers, whose output is a list with dropout
    {"wq", "wk", "wv", "wqkv", "wo"},                      // Llama's first release
    {"w_q", "w_k", "w_v", "qkv", "w_o"},
    {"w_qs", "w_ks", "w_vs", "qkv", "fc"},
    {"q_linear", "k_linear", "v_linear", "qkv", "out"},
}};

/// The one name with two meanings: all three of q, k, v (V2, V3), or the output beside other names of those (timm,
/// minGPT).
constexpr std::string_view kProj = "proj";

/// Tensors of files that are no parameters: causal masks and the angles of rotary positions, which options say here.
constexpr std::array<std::string_view, 6> kBuffers = {
    "mask", "causal_mask", "masked_bias", "tril", "inv_freq", "rotary_emb.inv_freq"};

/// GPT-2's causal mask is called "bias" and has the axes [1, 1, T, T]; a bias of anything has one.
bool is_buffer(std::string_view name, const AnyTensor& tensor) {
  return std::ranges::find(kBuffers, name) != kBuffers.end() || (name == "bias" && tensor.sizes.size() == 4);
}

struct Spelled {
  Role role = kQuery;
  bool bias = false;
  std::string_view matrix;  // "W_q" of "W_q.weight"
};

std::string_view matrix_of(std::string_view name) {
  return name.substr(0, name.size() - (name.ends_with("bias") ? 5 : 7));
}

/// "W_q.weight" -> kQuery, weight. `own` are names that the table need not have.
std::optional<Spelled> spelled(std::string_view name, const Family& own) {
  for (const bool bias : {false, true}) {
    for (std::size_t role = 0; role < kNumRoles; ++role) {
      const auto is = [&](const Family& family) {
        const std::string dotted = std::string(family[role]) + (bias ? ".bias" : ".weight");
        return name == dotted || name == full_name(family[role], bias);
      };
      // The columns have `proj` twice: where it is the output is for Names to say.
      if ((role != kOutput || matrix_of(name) != kProj) && (is(own) || std::ranges::any_of(kSpellings, is))) {
        return Spelled{static_cast<Role>(role), bias, matrix_of(name)};
      }
    }
  }
  return std::nullopt;
}

/// The roles of the names of one file, given all of them.
class Names {
 public:
  Names(const std::vector<StateEntry>& entries, const Family& own) : own_(own) {
    bool inputs = false, output = false;
    for (const StateEntry& entry : entries) {
      const auto meaning = spelled(entry.name, own);
      if (!meaning || meaning->matrix == kProj) continue;
      (meaning->role == kOutput ? output : inputs) = true;
    }
    proj_is_output_ = inputs && !output;
  }
  std::optional<Spelled> operator()(std::string_view name) const {
    auto meaning = spelled(name, own_);
    if (meaning && proj_is_output_ && meaning->matrix == kProj) meaning->role = kOutput;
    return meaning;
  }

 private:
  const Family& own_;
  bool proj_is_output_ = false;
};

/// The layer's sizes and, for parameters that a file lacks, the names to ask for.
class Reader {
 public:
  Reader(const AttentionForm& form, const LayerConfig& config, const StateDict& state, std::string_view prefix)
      : form_(form), config_(config), prefix_(prefix), entries_(entries_under(state, prefix)) {}

  NamedTensors read() {
    std::ranges::copy(form_.names, names_.begin());
    collect();
    require_one_form();
    choose_names();
    check_all();
    return std::move(found_);
  }

 private:
  /// Assigns every entry to its role.
  void collect() {
    const Names names(entries_, form_.names);
    for (const StateEntry& entry : entries_) {
      if (match_norm(entry) || is_buffer(entry.name, *entry.tensor)) continue;
      const auto meaning = names(entry.name);
      if (!meaning || (meaning->role == kOutput && form_.output == OutputProjection::kNone)) {
        throw_unknown(form_.type, prefix_, entry.name, expected(),
            "; any of these names will do: " + spellings_text(form_.output != OutputProjection::kNone));
      }
      auto& tensor = (meaning->bias ? found_.biases : found_.weights)[meaning->role];
      auto& name = (meaning->bias ? found_.bias_names : found_.weight_names)[meaning->role];
      if (tensor != nullptr) throw_twice(name, entry.name);
      tensor = entry.tensor;
      name = entry.name;
    }
  }

  bool match_norm(const StateEntry& entry) {
    if (!form_.grouped || (entry.name != kQueryNorm && entry.name != kKeyNorm)) return false;
    (entry.name == kQueryNorm ? found_.q_norm : found_.k_norm) = entry.tensor;
    return true;
  }

  void require_one_form() {
    const std::string& merged = first_name(kMerged);
    found_.merged = !merged.empty();
    for (const Role role : {kQuery, kKey, kValue}) {
      const std::string& separate = first_name(role);
      if (found_.merged && !separate.empty()) throw_twice(merged, separate);
      if (!separate.empty()) any_separate_ = true;
    }
    if (!found_.merged && !any_separate_) found_.merged = form_.merged;
  }

  /// Under which names a missing parameter is asked for: the layer's own when they fit the file's, otherwise those of
  /// the first family that fits.
  void choose_names() {
    const auto fits = [this](const Family& family) {
      for (std::size_t role = 0; role < kNumRoles; ++role) {
        const std::string& name = first_name(static_cast<Role>(role));
        if (!name.empty() && matrix_of(name) != family[role]) return false;
      }
      return true;
    };
    if (!fits(form_.names)) {
      const auto family = std::find_if(std::begin(kSpellings), std::end(kSpellings), fits);
      if (family != kSpellings.end()) std::ranges::copy(*family, names_.begin());
    }
    for (std::size_t role = 0; role < kNumRoles; ++role) {
      const std::string& name = first_name(static_cast<Role>(role));
      if (!name.empty()) names_[role] = matrix_of(name);
    }
  }

  void check_all() const {
    const std::vector<Slot> all = slots();
    for (const Slot& slot : all) {
      if (slot.want.required && slot.tensor == nullptr)
        throw_missing(form_.type, prefix_, slot.want.name, expected(), entries_);
    }
    for (const Slot& slot : all) {
      if (slot.tensor != nullptr) check_sizes(form_.type, prefix_, *slot.tensor, slot.want, expected());
    }
  }

  std::vector<Index> weight_sizes(Role role) const {
    if (role == kOutput) return {config_.embed_dim, width()};
    if (role == kMerged) return {width() + 2 * kv_width(), config_.embed_dim};
    return {role == kQuery ? width() : kv_width(), config_.embed_dim};
  }

  /// The tensors that a file in this form can hold, and those of this one.
  struct Slot {
    Expected want;
    const AnyTensor* tensor = nullptr;
  };
  /// All biases or none; of grouped heads, those of q, k, v apart from the output's.
  std::vector<Slot> slots() const {
    const bool merged = found_.merged || (!any_separate_ && form_.merged);
    const bool biases =
        std::any_of(found_.biases.begin(), found_.biases.begin() + (form_.grouped ? kOutput : kNumRoles),
            [](const AnyTensor* tensor) { return tensor != nullptr; });
    std::vector<Slot> list;
    for (std::size_t index = 0; index < kNumRoles; ++index) {
      const auto role = static_cast<Role>(index);
      if (role == kOutput ? form_.output == OutputProjection::kNone : (role == kMerged) != merged) continue;
      const auto named = [&](const std::string& found, bool bias) {
        return found.empty() ? full_name(names_[role], bias) : found;
      };
      const bool required =
          role != kOutput || form_.output == OutputProjection::kRequired || !first_name(kOutput).empty();
      const std::vector<Index> sizes = weight_sizes(role);
      list.push_back({{named(found_.weight_names[role], false), sizes, required}, found_.weights[role]});
      list.push_back({{named(found_.bias_names[role], true), {sizes[0]},
                          required && biases && !(form_.grouped && role == kOutput)},
          found_.biases[role]});
    }
    if (!form_.grouped) return list;
    const bool norms = config_.qk_norm != QkNorm::kNone || found_.q_norm != nullptr || found_.k_norm != nullptr;
    // As the layer says; otherwise, whether the norm is as long as q's rows in the file.
    const bool whole = config_.qk_norm != QkNorm::kNone
                           ? config_.qk_norm == QkNorm::kVector
                           : found_.q_norm != nullptr && found_.q_norm->sizes != std::vector<Index>{config_.head_dim};
    list.push_back({{std::string(kQueryNorm), {whole ? width() : config_.head_dim}, norms}, found_.q_norm});
    list.push_back({{std::string(kKeyNorm), {whole ? kv_width() : config_.head_dim}, norms}, found_.k_norm});
    return list;
  }
  std::vector<Expected> expected() const {
    std::vector<Expected> list;
    for (Slot& slot : slots()) list.push_back(std::move(slot.want));
    return list;
  }

  /// The name of a role's weight in the file, or otherwise of its bias; empty when it has neither.
  const std::string& first_name(Role role) const {
    return found_.weight_names[role].empty() ? found_.bias_names[role] : found_.weight_names[role];
  }

  [[noreturn]] void throw_twice(const std::string& first, const std::string& second) const {
    fail<OptionError>(std::string(form_.type) + "::load_state_dict", "each parameter must be named once: got both ",
        prefix_, first, " and ", prefix_, second);
  }

  Index width() const { return config_.num_heads * config_.head_dim; }        // W
  Index kv_width() const { return config_.num_kv_heads * config_.head_dim; }  // Wkv

  const AttentionForm& form_;
  const LayerConfig& config_;
  std::string_view prefix_;
  std::vector<StateEntry> entries_;
  std::array<std::string, kNumRoles> names_;
  bool any_separate_ = false;
  NamedTensors found_;
};

}  // namespace

std::string full_name(std::string_view matrix, bool bias) {
  return std::string(matrix) + (matrix == "in_proj" ? "_" : ".") + (bias ? "bias" : "weight");
}

std::string spellings_text(bool output) {
  constexpr std::array<std::string_view, kNumRoles> kWhat = {"q", "k", "v", "all three", "output"};
  std::string text;
  for (std::size_t role = 0; role < (output ? kNumRoles : kOutput); ++role) {
    std::vector<std::string_view> names;
    for (const Family& family : kSpellings) {
      if (std::ranges::find(names, family[role]) == names.end()) names.push_back(family[role]);
    }
    text.append(text.empty() ? "" : "; ").append(kWhat[role]).append(":");
    for (const std::string_view name : names) text.append(" ").append(name);
  }
  text += " (proj beside other names of q, k, v is the output); left out: bias [1, 1, T, T]";
  for (const std::string_view name : kBuffers) text.append(" ").append(name);
  return text;
}

NamedTensors read_attention_parameters(
    const AttentionForm& form, const LayerConfig& config, const StateDict& state, std::string_view prefix) {
  return Reader(form, config, state, prefix).read();
}

FoundSizes find_sizes(const StateDict& state, bool grouped) {
  FoundSizes found;
  Index merged_rows = 0;
  std::vector<std::array<Index, 2>> sizes_of_each;  // E and W
  const std::vector<StateEntry> entries = entries_under(state, {});
  const Names names(entries, kSpellings[0]);
  for (const StateEntry& entry : entries) {
    const std::vector<Index>& sizes = entry.tensor->sizes;
    if (entry.name == kKeyNorm && sizes.size() == 1) found.head_dim = sizes[0];
    const auto meaning = names(entry.name);
    if (!meaning || meaning->bias || sizes.size() != 2) continue;
    const Role role = meaning->role;
    const Index embed_dim = sizes[role == kOutput ? 0 : 1], width = sizes[role == kOutput ? 1 : 0];
    sizes_of_each.push_back({embed_dim, role == kMerged ? width / 3 : width});
    if (role == kOutput || (role == kQuery && found.width == 0)) found.embed_dim = embed_dim, found.width = width;
    if (role == kKey) found.kv_width = width;
    if (role == kMerged) merged_rows = width;
  }
  if (!grouped) {
    // The sizes of most weights, so that one wrongly shaped weight is refused and not all others; the first among
    // equals.
    const auto votes = [&](const auto& one) { return std::count(sizes_of_each.begin(), sizes_of_each.end(), one); };
    const auto most = std::max_element(
        sizes_of_each.begin(), sizes_of_each.end(), [&](const auto& a, const auto& b) { return votes(a) < votes(b); });
    return most == sizes_of_each.end() ? FoundSizes{} : FoundSizes{(*most)[0], (*most)[1], (*most)[1]};
  }
  if (merged_rows > 0) found.kv_width = (merged_rows - found.width) / 2;
  if (found.head_dim == found.kv_width) found.head_dim = 0;  // over the whole vector
  return found;
}

}  // namespace qkv::inline v0::nn
