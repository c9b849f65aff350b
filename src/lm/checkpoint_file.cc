// Checkpoints as files: the one part of qkv_lm that needs qkv_io.
#include "qkv/io/safetensors.h"
#include "qkv/lm/trainer.h"

namespace qkv::inline v0::lm {

void save_checkpoint(const std::string& path, const AttentionLM& model, const CharTokenizer& tokenizer,
    const std::string& task, Index step, const AdamState* adam) {
  io::save_safetensors(path, checkpoint_to_state(model, tokenizer, task, step, adam));
}

Checkpoint load_checkpoint(const std::string& path) { return checkpoint_from_state(io::load_safetensors(path)); }

}  // namespace qkv::inline v0::lm
