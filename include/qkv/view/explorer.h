// The explorer: every head of a model in one HTML page that needs no network, from one documented file of tensors
// (docs/explorer-file.md). Its content security policy forbids every request. Not: reading or writing that file
// (qkv/io), running a model, naming the kinds of heads.
#pragma once

#include <string>
#include <vector>

#include "qkv/context.h"
#include "qkv/state_dict.h"
#include "qkv/view/heatmap.h"

namespace qkv::inline v0::view {

/// The full form of the small one: q [H, Tq, D], k [Hkv, Tk, D], optional lse [H, Tq], sinks [H], alibi [H], relative
/// [H, 2 R + 1], and metadata (scale, softcap, causal, window, offset, title, name). Maps, column mass and statistics
/// come from one capture of forward; nothing of size Tq x Tk is allocated. Tokens: none, or Tq and Tk of them. Throws
/// ShapeError (sizes), OptionError (a name or value that the form does not have; an lse that does not follow from the
/// rest), UnsupportedError (a bias by position whose offset is neither 0 nor Tk - Tq).
QKV_API StateDict explorer_of_heads(const StateDict& heads, const std::vector<std::string>& query_tokens = {},
    const std::vector<std::string>& key_tokens = {}, Context& context = Context::default_context());

/// The full form of a map, with every weight: F16 up to 262,144 of them, otherwise U8, whose error is at most
/// (sqrt(w * peak) + peak / 254) / 254 with the head's largest weight as its peak. The page states the largest error.
QKV_API StateDict explorer_of_map(const AttentionMap& map, const MapOptions& options = {});

/// The page of a file in its full form. Throws OptionError for another format or a tensor name that the form does not
/// have, ShapeError for a tensor of another rank. The page checks the JSON, and states what is wrong. served: its
/// policy lets it ask the server that it came from.
QKV_API std::string render_explorer(const StateDict& file, bool served = false);

}  // namespace qkv::inline v0::view
