// qkv_sweep: products of the options that the tests cover in pairs, on every instruction set, forward and backward,
// against the reference within computed bounds.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/isas.h"
#include "sweep/family.h"

namespace qkv::test {
namespace {

/// Counts failed expectations and prints them with the case they belong to.
class Failures : public testing::EmptyTestEventListener {
 public:
  void begin(std::string name) { case_ = std::move(name); }
  void add(const std::string& what) {
    ++count_;
    std::printf("FAILED %s\n%s\n", case_.c_str(), what.c_str());
    std::fflush(stdout);
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) add(result.message());
  }
  Index count() const { return count_; }

 private:
  std::string case_;
  Index count_ = 0;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Wanted {
  std::vector<std::string> families;
  Index part = 1, parts = 1, only = -1;
  bool list = false;
  std::string hashes;  // a file; empty: none
};

/// False: an unknown argument.
bool parse(int argc, char** argv, Wanted& wanted) {
  for (int n = 1; n < argc; ++n) {
    const std::string_view word = argv[n];
    long long first = 0, second = 0;
    char rest = 0;
    if (word == "--list") {
      wanted.list = true;
    } else if (word == "--part" && n + 1 < argc &&
               std::sscanf(argv[n + 1], "%lld/%lld%c", &first, &second, &rest) == 2) {
      wanted.part = first, wanted.parts = second, ++n;
      if (first < 1 || first > second) return false;
    } else if (word == "--case" && n + 1 < argc && std::sscanf(argv[n + 1], "%lld%c", &first, &rest) == 1) {
      wanted.only = first, ++n;
      if (first < 0) return false;
    } else if (word == "--hashes" && n + 1 < argc) {
      wanted.hashes = argv[++n];
    } else if (!word.starts_with("-")) {
      wanted.families.emplace_back(word);
    } else {
      return false;
    }
  }
  return wanted.only < 0 || wanted.families.size() == 1;
}

/// Writes the lines of --hashes.
class HashFile {
 public:
  explicit HashFile(const std::string& path) : file_(path.empty() ? nullptr : std::fopen(path.c_str(), "w")) {
    if (!path.empty() && file_ == nullptr) throw std::runtime_error("cannot write " + path);
    const char* detail = std::getenv("QKV_SWEEP_HASHES");
    each_case_ = detail != nullptr && std::string_view(detail) == "cases";
  }
  ~HashFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  HashFile(const HashFile&) = delete;
  HashFile& operator=(const HashFile&) = delete;

  void end_case(const char* family, Index number) {
    for (const auto& [isa, hash] : result_hash().take()) {
      std::uint64_t& sum = family_[isa];
      sum = (sum ^ hash) * 0x9E3779B97F4A7C15u;
      sum ^= sum >> 32;
      if (file_ != nullptr && each_case_) {
        std::fprintf(file_, "%s %lld %s %016" PRIx64 "\n", family, static_cast<long long>(number), isa.c_str(), hash);
      }
    }
  }
  void end_family(const char* family) {
    for (const auto& [isa, hash] : family_) {
      if (file_ != nullptr) std::fprintf(file_, "%s %s %016" PRIx64 "\n", family, isa.c_str(), hash);
    }
    family_.clear();
  }

 private:
  std::FILE* file_;
  bool each_case_ = false;
  std::map<std::string, std::uint64_t> family_;
};

struct Total {
  Index families = 0, cases = 0;
  std::int64_t compared = 0;
  double largest = 0;
};

void run_family(const Family& family, const Wanted& wanted, Failures& failures, Total& total, HashFile& hashes) {
  Worst worst;
  Index cases = 0;
  const Index failed_before = failures.count();
  const double begin = cpu_seconds();
  double said = begin;
  const Index first = wanted.only >= 0 ? wanted.only : wanted.part - 1;
  const Index end = wanted.only >= 0 ? std::min(wanted.only + 1, family.count) : family.count;
  for (Index n = first; n < end; n += wanted.parts) {
    failures.begin(std::string(family.name) + " --case " + std::to_string(n));
    try {
      cases += family.run(n, worst);
    } catch (const std::exception& error) {
      ++cases;
      failures.add(error.what());
    }
    hashes.end_case(family.name, n);
    const double now = cpu_seconds();
    if (now - said < 60) continue;
    said = now;
    std::printf("  %s: %lld of %lld\n", family.name, static_cast<long long>(n), static_cast<long long>(end));
    std::fflush(stdout);
  }
  hashes.end_family(family.name);
  std::string compared;  // by checks with bounds; the others compare bits
  if (worst.compared() > 0) compared = std::to_string(worst.compared()) + " results held against bounds, ";
  std::printf("%s: %lld cases of %lld numbers, %s%lld failures, %.1f s\n", family.name, static_cast<long long>(cases),
      static_cast<long long>(family.count), compared.c_str(), static_cast<long long>(failures.count() - failed_before),
      cpu_seconds() - begin);
  worst.print(family.name);
  std::fflush(stdout);
  ++total.families, total.cases += cases, total.compared += worst.compared();
  total.largest = std::max(total.largest, worst.largest());
}

int run(const Wanted& wanted) {
  std::vector<Family> families = {rotary_family(), ring_family(), cache_family(), linear_family(), ragged_family(),
      capture_family(), sequences_family(), second_order_family(), attention_family()};
#ifdef QKV_SWEEP_NN
  families.push_back(grouped_family());
#endif
  for (const std::string& name : wanted.families) {
    if (std::ranges::none_of(families, [&](const Family& family) { return name == family.name; })) {
      std::fprintf(stderr, "qkv_sweep: no family %s; see --list\n", name.c_str());
      return 2;
    }
  }
  std::erase_if(families, [&](const Family& family) {
    return !wanted.families.empty() && std::ranges::count(wanted.families, family.name) == 0;
  });
  if (wanted.list) {
    Index count = 0;
    for (const Family& family : families) {
      std::printf("%-13s %8lld  %s\n%24s%s\n", family.name, static_cast<long long>(family.count), family.multiplied,
          "drawn: ", family.drawn);
      count += family.count;
    }
    std::printf("%-13s %8lld  each on:", "together", static_cast<long long>(count));
    for (const Isa isa : tested_isas()) std::printf(" %s", std::string(isa_name(isa)).c_str());
    std::printf("\n");
    return 0;
  }
  auto* failures = new Failures;  // gtest's list owns it
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(failures);
  Total total;
  const double begin = cpu_seconds();
  HashFile hashes(wanted.hashes);
  for (const Family& family : families) run_family(family, wanted, *failures, total, hashes);
  std::printf(
      "sweep: %lld cases of %lld families on %zu instruction sets, %lld results, worst error/bound %.3f, %lld "
      "failures, %.1f s of one core\n",
      static_cast<long long>(total.cases), static_cast<long long>(total.families), tested_isas().size(),
      static_cast<long long>(total.compared), total.largest, static_cast<long long>(failures->count()),
      cpu_seconds() - begin);
  return failures->count() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace qkv::test

int main(int argc, char** argv) {
  qkv::test::Wanted wanted;
  if (!qkv::test::parse(argc, argv, wanted)) {
    std::fputs("qkv_sweep: scripts/sweep --help says how it is called\n", stderr);
    return 2;
  }
  return qkv::test::run(wanted);
}
