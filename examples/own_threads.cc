// qkv on your application's threads: implement Executor. Results are bit-identical whatever the threads and their
// number.
#include <future>

#include "example.h"
#include "qkv/qkv.h"

/// Starts threads for every region: simple, not fast. A real application hands the bodies to its own pool.
class StartThreads : public qkv::Executor {
 public:
  int concurrency() const override { return 3; }
  void run(int workers, const std::function<void(int)>& body) override {
    std::vector<std::future<void>> running;
    for (int n = 0; n < workers; ++n) running.push_back(std::async(std::launch::async, body, n));
    for (std::future<void>& one : running)
      one.get();  // rethrows what a body threw; the other futures still wait for theirs
    regions += 1;
  }
  int regions = 0;
};

int main() {
  const auto threads = std::make_shared<StartThreads>();
  qkv::Context mine({.executor = threads}), one({.threads = 1});
  const qkv::Tensor<float> q = random_tensor({4, 4, 256, 32}, 1);  // [B, H, T, D]
  qkv::Tensor<float> out(q.sizes()), expected(q.sizes());
  qkv::attention_forward(q, q, q, {.out = out}, {.mask = qkv::Mask::causal()}, mine);
  qkv::attention_forward(q, q, q, {.out = expected}, {.mask = qkv::Mask::causal()}, one);
  std::printf("%d regions on %d own threads, %s instructions\n", threads->regions, mine.threads(),
      qkv::isa_name(mine.isa()).data());
  return verdict(threads->regions > 0 && largest_difference(out, expected) == 0, "own threads, same bits");
}
