#include "ranks/ranks.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/escape.h"
#include "qkv/dist/guarded.h"
#include "qkv/dist/mpi.h"
#include "ranks/launch.h"
#include "support/signals.h"

namespace qkv::cli {
namespace {

/// This host and the processors that this process may use, in words that are equal where both are.
std::string processors() {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  std::string text = host;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) text += " " + std::to_string(cpu);
    }
  }
  return text;
}

/// How many ranks have the same processors as this one, itself among them.
int sharers(dist::Transport& transport) {
  const std::string mine = processors();
  return static_cast<int>(std::ranges::count(dist::texts_of_ranks(transport, mine), mine));
}

}  // namespace

void add_parallel_options(Options& add, ParallelOptions& options, const std::string& methods) {
  add.heading("Several ranks (mpirun -n N qkv ...)");
  add("--parallel METHOD", &options.method, "Share the work among the ranks: " + methods);
  add("--timeout S", &options.timeout, "Seconds without a heartbeat before a rank counts as lost (default 8)",
      {.needs = "--parallel"});
}

Ranks::Ranks(dist::Transport& transport, const ComputeOptions& compute)
    : transport_(transport), context_(compute.context()) {
  if (!context_.isa) {
    if (const char* const name = std::getenv("QKV_ISA")) context_.isa = parse_isa(name);
  }
  const dist::SharedIsa shared = dist::agree_on_isa(transport, context_.isa);
  context_.isa = shared.isa;
  note_ = shared.note;
  const int with = sharers(transport);
  if (context_.threads == 0 && std::getenv("QKV_THREADS") == nullptr)
    context_.threads = std::max(1, available_threads() / with);
}

void Ranks::barrier() const { dist::texts_of_ranks(transport_, {}); }

void run_ranks(const std::string& command, const ParallelOptions& options, const ComputeOptions& compute,
    const std::function<void(Ranks&)>& body) {
  if (!launch().launched) {
    throw UsageError("--parallel " + options.method +
                     " needs several ranks: start them with Open MPI (Debian: openmpi-bin), such as mpirun -n 4 qkv " +
                     command);
  }
  if (options.timeout == 0) throw UsageError("--timeout must be a number of seconds above 0: got 0");
  dist::Mpi mpi;
  if (const int started = launch().ranks; started > 1 && mpi.data().size() != started) {
    throw UsageError("the launcher must speak to Open MPI (mpirun, or srun --mpi=pmix): it started " +
                     std::to_string(started) + " ranks, of which MPI sees " + std::to_string(mpi.data().size()));
  }
  const std::string label =
      "rank " + std::to_string(mpi.data().rank()) + " of " + std::to_string(mpi.data().size()) + ": ";
  set_rank_label(label);
  set_last_words(
      "qkv " + command + ": " + label + "was asked to stop: another rank has ended, or mpirun was stopped\n");
  dist::Guarded guarded(mpi.data(), mpi.control(), {.timeout = options.timeout});
  try {
    dist::agree(guarded, {{"command", command}, {"--parallel", options.method},
                             {"--bits", compute.bits.empty() ? "fast" : compute.bits}});
    Ranks ranks(guarded, compute);
    if (ranks.first() && !ranks.note().empty())
      std::fputs(("qkv " + command + ": " + one_line(ranks.note()) + "\n").c_str(), stderr);
    body(ranks);
    guarded.finish();
  } catch (const std::exception& error) {
    guarded.fail(error.what());
    throw;
  }
  mpi.close();
  set_last_words({});
}

}  // namespace qkv::cli
