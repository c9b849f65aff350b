// The thread pool as an Executor, and what the operating system reports about threads.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/threads/available_threads.h"
#include "qkv/context.h"
#include "qkv/error.h"

namespace {

using qkv::make_thread_pool;

// How often each body ran.
std::vector<int> counts_of(qkv::Executor& pool, int workers) {
  std::vector<std::atomic<int>> counts(static_cast<std::size_t>(workers));
  pool.run(workers, [&](int n) { ++counts[static_cast<std::size_t>(n)]; });
  return {counts.begin(), counts.end()};
}

TEST(ThreadPool, CallsEveryBodyOnce) {
  for (const int threads : {1, 2, 5}) {
    const auto pool = make_thread_pool(threads);
    EXPECT_EQ(pool->concurrency(), threads);
    for (const int workers : {0, 1, 2, 5, 40}) {
      for (int round = 0; round < 200; ++round) {
        ASSERT_EQ(counts_of(*pool, workers), std::vector<int>(static_cast<std::size_t>(workers), 1));
      }
    }
  }
}

TEST(ThreadPool, RunsBodiesAtTheSameTime) {
  const auto pool = make_thread_pool(3);
  std::atomic<int> arrived{0};
  pool->run(3, [&](int) {  // ends only when all three run at once
    ++arrived;
    while (arrived.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 3);
}

TEST(ThreadPool, WorksAfterIdleAndAfterSleep) {
  const auto pool = make_thread_pool(2);
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(counts_of(*pool, 4), std::vector<int>(4, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // much longer than threads spin
  }
}

TEST(ThreadPool, CallerSleepsInALongJoinAndWakes) {
  const auto pool = make_thread_pool(2);
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> helper_in{false};
  std::atomic<bool> helper_done{false};
  pool->run(2, [&](int) {
    if (std::this_thread::get_id() == caller) {
      while (!helper_in) std::this_thread::yield();
    } else {
      helper_in = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      helper_done = true;
    }
  });
  EXPECT_TRUE(helper_done);
}

TEST(ThreadPool, CostsNothingWhileIdle) {
  const auto pool = make_thread_pool(4);
  counts_of(*pool, 8);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto cpu_ms = [] {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
  };
  const double before = cpu_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LT(cpu_ms() - before, 30);  // three spinning helpers would take 100 ms of each CPU
}

TEST(ThreadPool, FirstExceptionComesAfterAllBodies) {
  const auto pool = make_thread_pool(3);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> ran{0};
    const auto body = [&](int n) {
      ++ran;
      if (n % 2 == 1) throw std::runtime_error("odd");
    };
    EXPECT_THROW(pool->run(8, body), std::runtime_error);
    EXPECT_EQ(ran.load(), 8);
    EXPECT_EQ(counts_of(*pool, 3), std::vector<int>(3, 1));  // and the pool still works
  }
}

TEST(ThreadPool, SecondCallerAndNestedCallDoNotWait) {
  const auto pool = make_thread_pool(2);
  std::atomic<int> inner{0};
  pool->run(2, [&](int) { pool->run(3, [&](int) { ++inner; }); });
  EXPECT_EQ(inner.load(), 6);

  std::atomic<bool> second_done{false};
  std::thread second;
  pool->run(2, [&](int n) {
    if (n != 0) return;
    second = std::thread([&] {
      pool->run(4, [](int) {});
      second_done = true;
    });
    while (!second_done) std::this_thread::yield();  // the first region runs until the second has ended
  });
  second.join();
}

TEST(ThreadPool, ManyCallersGetAllTheirBodies) {
  const auto pool = make_thread_pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> total{0};
  for (int n = 0; n < 4; ++n) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) pool->run(3, [&](int) { ++total; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4 * 300 * 3);
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  EXPECT_THROW(make_thread_pool(0), qkv::OptionError);
  EXPECT_THROW(make_thread_pool(qkv::kMaxThreads + 1), qkv::OptionError);
}

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer ends a child of fork that starts threads

// Exit status of a child of fork that runs `work`; -1 when it hung or died.
template <class Work> int status_of_child(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(work() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ThreadPool, IsRebuiltAfterFork) {
  const auto pool = make_thread_pool(2);
  const auto meets = [&] {  // needs two live threads
    std::atomic<int> arrived{0};
    pool->run(2, [&](int) {
      ++arrived;
      while (arrived.load() < 2) std::this_thread::yield();
    });
    return true;
  };
  EXPECT_TRUE(meets());  // none is still starting: a sanitizer's lock would be copied as it is
  EXPECT_EQ(status_of_child(meets), 0);
  EXPECT_EQ(status_of_child([&] { return meets() && status_of_child(meets) == 0; }), 0);  // a grandchild too
  EXPECT_TRUE(meets());
}

TEST(ThreadPool, ForkWhileAnotherThreadIsInARegion) {
  qkv::Context context({.threads = 2});
  std::atomic<int> inside{0};
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    context.parallel_for(2, [&](qkv::Index, int) {
      ++inside;
      while (!stop) std::this_thread::yield();
    });
  });
  while (inside < 2) std::this_thread::yield();  // none is still starting: a sanitizer's lock would be copied as it is
  EXPECT_EQ(status_of_child([&] {
    std::atomic<int> arrived{0};
    context.parallel_for(2, [&](qkv::Index, int) {  // hangs if the child relies on the parent's lock or threads
      ++arrived;
      while (arrived.load() < 2) std::this_thread::yield();
    });
    return true;
  }),
      0);
  stop = true;
  busy.join();
}

#endif

namespace fs = std::filesystem;

class Cgroups : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "qkv-cgroups-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << '\n';
  }

  fs::path root_;
};

TEST_F(Cgroups, Version2TakesTheTightestLevel) {
  write("cpu.max", "max 100000");
  write("a/cpu.max", "150000 100000");
  write("a/b/cpu.max", "400000 100000");
  EXPECT_EQ(qkv::cgroup_cpus("0::/a/b\n", root_), 1.5);
  EXPECT_EQ(qkv::cgroup_cpus("0::/\n", root_), std::nullopt);
  EXPECT_EQ(qkv::cgroup_cpus("0::/not/here\n", root_), std::nullopt);
}

TEST_F(Cgroups, Version1ReadsTheCpuController) {
  write("cpu,cpuacct/job/cpu.cfs_quota_us", "300000");
  write("cpu,cpuacct/job/cpu.cfs_period_us", "100000");
  write("cpu,cpuacct/free/cpu.cfs_quota_us", "-1");
  write("cpu,cpuacct/free/cpu.cfs_period_us", "100000");
  EXPECT_EQ(qkv::cgroup_cpus("12:pids:/job\n4:cpu,cpuacct:/job\n", root_), 3.0);
  EXPECT_EQ(qkv::cgroup_cpus("4:cpu,cpuacct:/free\n", root_), std::nullopt);
  EXPECT_EQ(qkv::cgroup_cpus("5:cpuset:/job\n", root_), std::nullopt);
}

TEST_F(Cgroups, NonsenseIsNoLimit) {
  write("cpu.max", "soon");
  EXPECT_EQ(qkv::cgroup_cpus("0::/\nnonsense\n:\n", root_), std::nullopt);
  EXPECT_EQ(qkv::cgroup_cpus("", root_), std::nullopt);
}

TEST(AvailableThreads, LieWithinTheMachine) {
  EXPECT_GE(qkv::available_threads(), 1);
  EXPECT_LE(qkv::available_threads(), std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

}  // namespace
