// This process as one of the ranks that mpirun started: joined, watched over, agreed on what they do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "qkv/dist/agree.h"
#include "qkv/dist/transport.h"
#include "support/options.h"

namespace qkv::cli {

/// --parallel METHOD, --timeout S.
struct ParallelOptions {
  std::string method;  ///< empty: one process
  double timeout = 8;  ///< seconds

  bool any() const { return !method.empty(); }
};
/// `methods`: for --help, "ulysses, ring".
void add_parallel_options(Options& add, ParallelOptions& options, const std::string& methods);

class Ranks {
 public:
  Ranks(dist::Transport& transport, const ComputeOptions& compute);
  dist::Transport& transport() const { return transport_; }
  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  bool first() const { return rank() == 0; }
  /// Threads: as given, otherwise the processors that mpirun bound this rank to, shared among the ranks of this host
  /// that have the same. Instruction set: one for all.
  const ContextOptions& context() const { return context_; }
  /// One line where the instruction set is not this machine's fastest; otherwise empty.
  const std::string& note() const { return note_; }
  /// MismatchError on every rank where they differ.
  void agree(const std::vector<dist::Claim>& claims) const { dist::agree(transport_, claims); }
  /// Returns when every rank has called it.
  void barrier() const;

 private:
  dist::Transport& transport_;
  ContextOptions context_;
  std::string note_;
};

/// Joins the ranks, runs `body` on each and leaves in order. An exception on one rank ends all, by a TransportError
/// on the others. `command` and the method are compared at the start.
void run_ranks(const std::string& command, const ParallelOptions& options, const ComputeOptions& compute,
    const std::function<void(Ranks&)>& body);

}  // namespace qkv::cli
