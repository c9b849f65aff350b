// Checks that ranks agree before they work together: shapes, options, version, instruction set. A difference
// would give other bits, or a wait without end; here it is one error with the same text on every rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "qkv/context.h"
#include "qkv/dist/transport.h"

namespace qkv::inline v0::dist {

/// The ranks do not want the same. The text names what differs, the ranks and their values; it is the same on every
/// rank.
class QKV_API MismatchError : public Error {
 public:
  using Error::Error;
  ~MismatchError() override;
};

/// Something that every rank must have the same of, in words: {"q", "f32 [1, 8, 4096, 64]"}, {"causal", "yes"}.
struct Claim {
  std::string name, value;
};

/// Collective, and the first thing that ranks should do. qkv's version is always compared. Throws MismatchError.
QKV_API void agree(Transport& transport, const std::vector<Claim>& claims);

/// Collective: the fastest instruction set that every rank can run, the same on all. A rank that wants a certain one
/// says so by `wanted` (QKV_ISA, --isa); two wishes that differ, or one that a rank cannot run: MismatchError.
struct SharedIsa {
  Isa isa = Isa::kScalar;
  std::string note;  ///< one line where a rank could run a faster one: which rank gave the limit; otherwise empty
};
QKV_API SharedIsa agree_on_isa(
    Transport& transport, std::optional<Isa> wanted = {}, const std::vector<Isa>& can_run = supported_isas());

/// Collective: every rank's text, in order of ranks, on every rank. Throws TransportError for texts above 64 MiB.
QKV_API std::vector<std::string> texts_of_ranks(Transport& transport, const std::string& mine);

}  // namespace qkv::inline v0::dist
