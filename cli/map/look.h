// Looks at a trained model on a text: `qkv map`'s --stats, --top-k and --json. The weights are those of the fast path, seen on
// the way (qkv/capture.h). Not: pictures (maps.h), tensors from files (attend/capture.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "qkv/capture.h"
#include "qkv/lm/attention_lm.h"
#include "support/command.h"
#include "support/json.h"

namespace qkv::cli {

struct MapLookOptions {
  bool stats = false, json = false;
  Index top_k = 0;

  bool any() const { return stats || json || top_k != 0; }
};
void add_map_look_options(CLI::App& app, MapLookOptions& options);

/// What was seen of one layer.
struct LayerLook {
  Index layer = 0;
  std::vector<Index> heads;  ///< in the order of `seen`
  CaptureResult seen;        ///< statistics, and the largest where they are wanted
};

/// At these layers and heads (none: all) of the model that reads `ids`. UsageError for what it does not have.
std::vector<LayerLook> look_at(const lm::AttentionLM& model, std::span<const Index> ids, const std::vector<Index>& layers,
                               const std::vector<Index>& heads, const MapLookOptions& options, Context& context);

/// As tables of means over the rows i >= 1, and the largest of each row; `labels`: one per token.
void print_looks(const std::vector<LayerLook>& looks, const std::vector<std::string>& labels, const MapLookOptions& options);
Json looks_json(const std::vector<LayerLook>& looks, const std::string& text);

}  // namespace qkv::cli
