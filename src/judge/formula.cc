// Which formula a task shows for a term of the catalogue, and where one reads about it.
#include <algorithm>

#include "judge/task.h"

namespace qkv::judge {
namespace {

struct Row {
  std::string_view part;  ///< of tasks: the first row that fits counts; empty: any task
  std::string_view term;  ///< empty: any term
  Formula formula;
};

constexpr std::string_view kAttention = "softmax(QK^T / sqrt(d) + mask) V W_o";
constexpr std::string_view kDropped = "dropout(softmax(QK^T / sqrt(d) + mask)) V W_o";
constexpr std::string_view kProjected = "Q = x W_q,  K = x W_k,  V = x W_v;  softmax(QK^T / sqrt(d) + mask) V W_o";
constexpr std::string_view kSplit = "[B, L, E] -> [B, L, H, d] -> [B, H, L, d];  softmax(QK^T / sqrt(d) + mask) V W_o";
constexpr std::string_view kCached =
    "K = [K of the past; K now],  V = [V of the past; V now];  softmax(QK^T / sqrt(d) + mask) V W_o";
constexpr std::string_view kTurned = "softmax((R(i) q_i)^T (R(j) k_j) / sqrt(d) + mask) V";
constexpr std::string_view kBlocks =
    "m' = max(m, S);  l' = exp(m - m') l + sum exp(S - m');  O' = exp(m - m') O + exp(S - m') V";
constexpr std::string_view kTrained = "loss = mean of -log p(next token);  parameter -= lr * gradient";
constexpr std::string_view kLinear = "out_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j),  phi = elu + 1";
constexpr std::string_view kBack =
    "dP = dO V^T,  dS = P * (dP - rowsum(P * dP)),  dQ = dS K / sqrt(d),  dK = dS^T Q / sqrt(d)";
constexpr std::string_view kBackRow = "dS = P * (dP - rowsum(P * dP))", kBackValues = "dV = P^T dO";
constexpr std::string_view kBackProjected = "dW = x^T dQ,  dx = dQ W_q^T + dK W_k^T + dV W_v^T";
constexpr std::string_view kBackOutput = "dW_o = (P V)^T dY,  dO = dY W_o^T";

constexpr std::string_view kReadLinear = "docs/concepts/linear-attention.md#three-ways-to-compute-one-sum";
constexpr std::string_view kReadBack = "qkv explain --backward; docs/maths/by-hand.md";
constexpr std::string_view kReadFinding = "docs/practice.md#how-to-read-a-finding";

constexpr Row kRows[] = {
    {"linear", "mask", {kLinear, "sum_j", kReadLinear}},
    {"linear", "scores", {kLinear, "phi = elu + 1", kReadLinear}},
    {"linear", "scale", {kLinear, "phi(q_i).phi(k_j)", kReadLinear}},
    {"linear", "softmax", {kLinear, "/ sum_j phi(q_i).phi(k_j)", kReadLinear}},
    {"linear", "values", {kLinear, "v_j", kReadLinear}},
    {"derivative", "mask", {kAttention, "+ mask", kReadBack}},
    {"derivative", "scale", {kBack, "/ sqrt(d)", kReadBack}},
    {"derivative", "softmax", {kBack, kBackRow, kReadBack}},
    {"derivative", "gradient", {kBack, kBack, kReadBack}},
    {"derivative", "values", {kBackValues, kBackValues, kReadBack}},
    {"derivative", "projection", {kBackProjected, kBackProjected, kReadBack}},
    {"backward", "output", {kBackOutput, kBackOutput, kReadBack}},
    {"cache", "state", {kCached, kCached.substr(0, kCached.find(";  ")), "docs/concepts/kv-cache.md"}},
    {"", "state", {"", "", kReadFinding}},
    {"", "projection",
        {kProjected, kProjected.substr(0, kProjected.find(';')), "qkv explain, step 2; docs/layers.md#the-ladder"}},
    {"", "heads",
        {kSplit, kSplit.substr(0, kSplit.find(';')), "qkv explain, steps 3, 4 and 9; docs/layers.md#the-ladder"}},
    {"", "scores", {kAttention, "QK^T", "qkv explain, step 5; docs/maths/forward.md#the-formula"}},
    {"", "scale",
        {kAttention, "/ sqrt(d)",
            "qkv explain, step 6; qkv ablate no-scale; docs/concepts/semantics.md#scale-soft-cap-bias"}},
    {"", "mask", {kAttention, "+ mask", "qkv mask causal --tq 4 --draw; docs/concepts/masks.md"}},
    {"", "softmax", {kAttention, "softmax", "qkv explain, step 7; docs/maths/forward.md#the-formula"}},
    {"", "values", {kAttention, ") V", "qkv explain, step 8; docs/maths/forward.md#the-formula"}},
    {"", "output", {kAttention, "W_o", "qkv explain, step 9; docs/layers.md#the-ladder"}},
    {"", "gradient", {kBack, "dS", kReadBack}},
    {"", "dropout", {kDropped, "dropout", "docs/concepts/semantics.md#dropout"}},
    {"", "positions", {kTurned, "(R(i) q_i)^T (R(j) k_j)", "docs/concepts/positions.md#rotary-positions"}},
    {"", "blocks", {kBlocks, kBlocks, "docs/maths/forward.md#online-softmax"}},
    {"", "training", {kTrained, kTrained, "qkv train; docs/maths/layers.md#cross-entropy"}},
};

}  // namespace

Formula Task::formula(std::string_view term) const {
  const auto row = std::ranges::find_if(
      kRows, [&](const Row& one) { return one.term == term && (one.part.empty() || has(one.part)); });
  Formula found = row == std::end(kRows) ? Formula{"", "", kReadFinding} : row->formula;
  constexpr std::string_view kOutput = " W_o";
  const bool shows_output = std::ranges::find(answers, std::string_view("dW_o")) != answers.end() || has("output");
  if (!shows_output && found.part != "W_o" && found.whole.ends_with(kOutput)) found.whole.remove_suffix(kOutput.size());
  return found;
}

}  // namespace qkv::judge
