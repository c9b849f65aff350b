// Context: reads QKV_THREADS, QKV_ISA and QKV_BITS, and gives the items of a region to workers.
#include "qkv/context.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>

#include "core/check.h"
#include "core/threads/available_threads.h"
#include "core/threads/context_impl.h"

namespace qkv::inline v0 {
namespace {

// Of the region, of any context, that this thread works in: whether an item of it has failed. Null outside of regions.
// A nested call must not wait for threads that wait for it.
thread_local const std::atomic<bool>* failure_of_region = nullptr;

class InsideRegion {
 public:
  explicit InsideRegion(const std::atomic<bool>& failed) { failure_of_region = &failed; }
  ~InsideRegion() { failure_of_region = before_; }
  InsideRegion(const InsideRegion&) = delete;
  InsideRegion& operator=(const InsideRegion&) = delete;

 private:
  const std::atomic<bool>* const before_ = failure_of_region;
};

// An empty variable counts as not set.
std::optional<std::string_view> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> environment_threads() {
  const auto text = environment("QKV_THREADS");
  if (!text) return std::nullopt;
  int threads = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), threads);
  const bool valid =
      error == std::errc() && end == text->data() + text->size() && threads >= 1 && threads <= kMaxThreads;
  check<OptionError>(
      valid, "Context", "QKV_THREADS must be a whole number from 1 to ", kMaxThreads, ": got \"", *text, "\"");
  return threads;
}

int chosen_threads(const ContextOptions& options) {
  check<OptionError>(options.threads >= 0 && options.threads <= kMaxThreads, "Context", "threads must be from 0 to ",
      kMaxThreads, ": got ", options.threads);
  const int limit = options.executor ? std::clamp(options.executor->concurrency(), 1, kMaxThreads) : kMaxThreads;
  if (options.threads > 0) return std::min(options.threads, limit);
  if (const auto threads = environment_threads()) return std::min(*threads, limit);
  return options.executor ? limit : available_threads();
}

/// The variable's value, or `otherwise` where it is not set.
template <class T> T from_environment(const char* variable, T otherwise, T (*parse)(std::string_view)) {
  const auto name = environment(variable);
  if (!name) return otherwise;
  try {
    return parse(*name);
  } catch (const OptionError& error) {
    fail<OptionError>("Context", variable, ": ", std::string_view(error.what()));
  }
}

Isa chosen_isa(const ContextOptions& options) {
  if (options.isa) return parse_isa(isa_name(*options.isa));
  return from_environment("QKV_ISA", supported_isas().back(), parse_isa);
}

// One region: workers take items from one counter, so items are claimed in ascending order and an item may wait for a
// smaller one: that one is already running, for any number of threads. When one fails, those that wait for it give up.
struct Region {
  const Index items;
  const std::function<void(Index, int)>& body;
  std::atomic<Index> next{0};
  std::atomic<bool> failed{false};

  void work(int worker) {
    const InsideRegion inside(failed);
    for (Index item = next.fetch_add(1, std::memory_order_relaxed); item < items;
         item = next.fetch_add(1, std::memory_order_relaxed)) {
      try {
        body(item, worker);
      } catch (const RegionFailed&) {
        return;  // the caller gets the exception of the item that failed
      } catch (...) {
        failed.store(true, std::memory_order_relaxed);
        next.store(items, std::memory_order_relaxed);  // no worker claims another item
        throw;
      }
    }
  }
};

}  // namespace

std::string_view bits_name(Bits bits) { return bits == Bits::kFast ? "fast" : "invariant"; }

Bits parse_bits(std::string_view name) {
  for (const Bits bits : {Bits::kFast, Bits::kInvariant}) {
    if (name == bits_name(bits)) return bits;
  }
  fail<OptionError>("bits", "must be \"fast\" or \"invariant\": got \"", name, "\"");
}

bool region_failed() { return failure_of_region != nullptr && failure_of_region->load(std::memory_order_relaxed); }

Context::Context(ContextOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->threads = chosen_threads(options);
  impl_->isa = chosen_isa(options);
  impl_->bits = options.bits ? *options.bits : from_environment("QKV_BITS", Bits::kFast, parse_bits);
  impl_->executor = options.executor ? std::move(options.executor) : make_thread_pool(impl_->threads);
}

Context::~Context() = default;

Context& Context::default_context() {
  // Never destroyed: static objects that compute while the process ends still find it.
  static Context* context = new Context;
  return *context;
}

int Context::threads() const { return impl_->threads; }
Isa Context::isa() const { return impl_->isa; }
Bits Context::bits() const { return impl_->bits; }
void Context::trim() { impl_->scratch.trim(); }
std::size_t Context::scratch_bytes() const { return impl_->scratch.held_bytes(); }

void Context::parallel_for(Index items, const std::function<void(Index item, int worker)>& body) {
  Region region{items, body};
  const int workers = static_cast<int>(std::min<Index>(items, impl_->threads));
  if (workers < 2 || failure_of_region != nullptr || !impl_->region.try_lock()) {
    region.work(0);
    return;
  }
  const RegionUnlock unlock{impl_->region};
  impl_->executor->run(workers, [&region](int worker) { region.work(worker); });
}

}  // namespace qkv::inline v0
