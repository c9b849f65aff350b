// Context: which threads, which instruction set, whose scratch memory. It alone reads the environment.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "qkv/export.h"
#include "qkv/types.h"

namespace qkv::inline v0 {

/// Instruction sets that the kernels are compiled for, slowest first among those of one architecture. kScalar is in
/// every build: what the compiler makes of 16-byte vectors without options for an instruction set.
enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx, kNeon, kSve256, kSve512 };

/// "scalar"; on x86-64 "avx2", "avx512", "avx512bf16", "amx" (tiles of bf16); on AArch64 "neon", "sve256", "sve512"
/// (SVE at vectors of 256 or 512 bits).
QKV_API std::string_view isa_name(Isa isa);
/// The instruction sets that this build holds and this CPU can run, slowest first. Never empty.
QKV_API const std::vector<Isa>& supported_isas();
/// Throws OptionError that lists the valid names when the name is unknown or the CPU cannot run it.
QKV_API Isa parse_isa(std::string_view name);

/// The changes under which a row keeps its bits.
enum class Bits {
  kFast,      ///< any number of threads, and repeated calls
  kInvariant  ///< these, any number of rows, any batch and instruction set: a row alone is the same row among others
              ///< (attention.h); about 13 times as slow on a CPU without fused multiply-adds
};
/// "fast", "invariant".
QKV_API std::string_view bits_name(Bits bits);
/// Throws OptionError that lists the valid names when the name is unknown.
QKV_API Bits parse_bits(std::string_view name);

/// Runs one body on several threads. Implement it to give qkv your application's threads.
class QKV_API Executor {
 public:
  virtual ~Executor();
  /// How many bodies can run at once, including the caller's thread. At least 1; a Context uses at most 1024.
  virtual int concurrency() const = 0;
  /// Calls body(0) ... body(workers - 1), each once, on any thread, in any order, and returns when all have returned.
  /// A body may throw: the first exception must reach the caller after all bodies have returned.
  virtual void run(int workers, const std::function<void(int)>& body) = 0;
};

/// The library's own pool: `threads` workers (the caller is one of them) that spin for 25 us, then sleep; rebuilt after
/// fork. OptionError unless threads is in 1 .. 1024.
QKV_API std::shared_ptr<Executor> make_thread_pool(int threads);
/// CPUs that this process may use: affinity and cgroup quota, at least 1.
QKV_API int available_threads();

struct ContextOptions {
  int threads = 0;             ///< 0: QKV_THREADS if set, otherwise the executor's concurrency, or available_threads()
  std::optional<Isa> isa{};    ///< none: QKV_ISA if set, otherwise the fastest supported.
  std::optional<Bits> bits{};  ///< none: QKV_BITS if set, otherwise kFast.
  std::shared_ptr<Executor> executor{};  ///< none: a new pool of `threads`; its concurrency limits them
};

/// Thread-safe: several threads may compute with one context at once; results are bit-identical to those of one alone.
/// One region runs on the executor at a time; a second caller computes on its own thread.
class QKV_API Context {
 public:
  /// OptionError: threads outside 0 .. 1024, an instruction set that cannot run here, a variable that cannot be read.
  explicit Context(ContextOptions options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// The context that calls use by default. Created at first use from QKV_THREADS, QKV_ISA and QKV_BITS.
  static Context& default_context();

  int threads() const;
  Isa isa() const;
  Bits bits() const;

  /// Calls body(item, worker) for every item in [0, items), which workers claim in ascending order, on at most
  /// threads() workers. worker < threads(). Serial when items < 2, when nested, or when another region is running.
  /// The first exception of a body reaches the caller, after all workers have returned; items not begun are left out.
  void parallel_for(Index items, const std::function<void(Index item, int worker)>& body);

  /// Frees scratch memory that no running call holds.
  void trim();
  /// Bytes of scratch memory held now.
  std::size_t scratch_bytes() const;

  struct Impl;
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace qkv::inline v0
