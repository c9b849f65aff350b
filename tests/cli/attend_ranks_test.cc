// `qkv attend --parallel` under mpirun: the file of one machine, whatever the number of ranks.
#include <cmath>
#include <random>

#include "cli/mpirun.h"
#include "qkv/io/safetensors.h"

namespace qkv::test {
namespace {

class AttendRanks : public RanksTest {
 protected:
  /// in.safetensors: q, dout [2, 4, Tq, 8], k, v [2, 2, Tk, 8], f32 or f64.
  template <class T> void make_input(Index q_len, Index kv_len, bool dout) const {
    std::mt19937 random(7);
    const auto tensor = [&](Index heads, Index length) {
      Tensor<T> x({2, heads, length, 8});
      for (T& value : x.span()) value = static_cast<T>(std::uniform_real_distribution<double>(-1, 1)(random));
      return any_tensor(x);
    };
    StateDict state;
    state.add("q", tensor(4, q_len));
    state.add("k", tensor(2, kv_len));
    state.add("v", tensor(2, kv_len));
    if (dout) state.add("dout", tensor(4, q_len));
    io::save_safetensors(path("in.safetensors"), state);
  }

  std::string shared(int ranks, const std::string& words) const {
    std::filesystem::remove(path("shared.safetensors"));
    const Outcome outcome = shell(mpirun(ranks, "attend --in in.safetensors --out shared.safetensors " + words));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return contents(path("shared.safetensors"));
  }
  std::string alone(const std::string& words) const {
    const Outcome outcome = shell("'" QKV_TOOL "' attend --in in.safetensors --out alone.safetensors " + words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return contents(path("alone.safetensors"));
  }
};

TEST_F(AttendRanks, ForwardIsTheSameFile) {
  for (const auto& [q_len, kv_len, words] : std::vector<std::tuple<Index, Index, std::string>>{{200, 200, "--causal"},
           {33, 70, "--causal=bottom-right --dropout 0.3 --seed 5"}, {2, 65, "--window 9,9,top-left"}}) {
    make_input<float>(q_len, kv_len, false);
    const std::string whole = alone(words);
    for (const int ranks : {1, 2, 3})
      EXPECT_TRUE(shared(ranks, words + " --parallel all-gather") == whole) << ranks << " ranks, " << words;
    EXPECT_TRUE(shared(3, words + " --parallel all-gather --layout contiguous") == whole) << words;
    EXPECT_TRUE(shared(2, words + " --parallel ulysses") == whole) << words;
    EXPECT_TRUE(shared(3, words + " --parallel ring") == whole) << words;
    EXPECT_TRUE(shared(3, words + " --parallel all-gather --layout zig-zag --turns 2 --chunk 64") == whole) << words;
  }
  EXPECT_EQ(files(), (std::vector<std::string>{"alone.safetensors", "in.safetensors", "shared.safetensors"}));
}

TEST_F(AttendRanks, TheFilesMaskAndBiasAreEveryRanks) {
  make_input<float>(33, 70, false);
  StateDict state = io::load_safetensors(path("in.safetensors"));
  std::mt19937 random(9);
  Tensor<std::uint8_t> keep({2, 1, 33, 70});
  for (std::uint8_t& kept : keep.span()) kept = random() % 3 != 0;
  Tensor<float> bias({1, 4, 33, 70});
  for (float& value : bias.span()) value = static_cast<float>(random() % 8) / 4;
  state.add("keep", any_tensor(keep));
  state.add("bias", any_tensor(bias));
  io::save_safetensors(path("in.safetensors"), state);
  const std::string whole = alone("");
  for (const char* method : {"all-gather", "ring", "ulysses"})
    EXPECT_TRUE(shared(2, std::string("--parallel ") + method) == whole) << method;
}

TEST_F(AttendRanks, BackwardIsTheSameFileByUlyssesAndHasEqualDqOtherwise) {
  make_input<double>(130, 130, true);
  const std::string whole = alone("--causal --softcap 3");
  EXPECT_TRUE(shared(2, "--causal --softcap 3 --parallel ulysses") == whole);
  const StateDict one = io::load_safetensors(path("alone.safetensors"));
  for (const char* method : {"all-gather", "ring"}) {
    SCOPED_TRACE(method);
    EXPECT_EQ(shared(3, std::string("--causal --softcap 3 --parallel ") + method).size(), whole.size());
    const StateDict all = io::load_safetensors(path("shared.safetensors"));
    for (const char* name : {"out", "lse", "dq"}) EXPECT_EQ(one.at(name).bytes, all.at(name).bytes) << name;
    for (const char* name : {"dk", "dv"}) {
      const Tensor<double> expected = to_f64(one.at(name)), got = to_f64(all.at(name));
      // A sum of 130 terms of a magnitude below 1 each, times 8 columns, in two orders: each within n eps of the sum of
      // magnitudes.
      const double bound = 2 * 130 * 130 * std::numeric_limits<double>::epsilon();
      for (Index i = 0; i < expected.count(); ++i) ASSERT_NEAR(got.data()[i], expected.data()[i], bound) << name << i;
    }
  }
}

TEST_F(AttendRanks, RefusesByNameAndLeavesNothing) {
  make_input<float>(8, 8, false);
  const auto refused = [&](int ranks, const std::string& words, const std::string& fragment) {
    const Outcome outcome = shell(mpirun(ranks, "attend " + words));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    ASSERT_FALSE(own_lines(outcome).empty()) << outcome.err;
    bool found = false;
    for (const std::string& line : own_lines(outcome)) found = found || line.find(fragment) != std::string::npos;
    EXPECT_TRUE(found) << fragment << "\n" << outcome.err;
  };
  const std::string files_of = "--in in.safetensors --out shared.safetensors ";
  refused(2, files_of + "--parallel spiral", "--parallel must be one of all-gather, ring, ulysses");
  refused(2, files_of + "--parallel ulysses --weights", "--weights and --applied are for one machine");
  refused(2, "--q q.npy --k k.npy --v v.npy --out out.npy --parallel ulysses", "--in FILE.safetensors");
  refused(2, files_of + "--parallel ulysses --lse lse.npy", "--lse is not read or written by ranks");
  refused(2, files_of + "--parallel ring --mask-axes qk", "--mask-axes needs --keep or --drop");
  refused(2, files_of + "--parallel ulysses --hash", "--hash is for one machine");
  refused(3, files_of + "--parallel ulysses", "ranks");
  refused(2, files_of + "--parallel ulysses --chunk 64", "Ulysses computes whole heads");
  refused(2, files_of + "--parallel ring --layout contiguous --turns 2", "--turns is for --layout zig-zag");
  EXPECT_EQ(files(), std::vector<std::string>{"in.safetensors"});
}

/// Ranks read rows by the length of k and of q: rows of v and dout beyond it, or none, are not passed over.
TEST_F(AttendRanks, TensorsOfOtherLengthsAreRefusedAsByOneProcess) {
  for (const auto& [name, sizes] : std::vector<std::pair<std::string, std::vector<Index>>>{{"v", {2, 2, 9, 8}},
           {"v", {2, 2, 5, 8}}, {"v", {2, 1, 8, 8}}, {"dout", {2, 4, 9, 8}}, {"dout", {2, 4, 8, 4}}}) {
    make_input<float>(8, 8, false);
    const StateDict whole = io::load_safetensors(path("in.safetensors"));
    StateDict state;
    for (const StateDict::Entry& entry : whole.entries()) {
      if (entry.name != name) state.add(entry.name, entry.tensor.clone());
    }
    state.add(name, any_tensor(Tensor<float>(sizes)));
    io::save_safetensors(path("in.safetensors"), state);
    EXPECT_EQ(shell("'" QKV_TOOL "' attend --in in.safetensors --out shared.safetensors").code, 2);
    for (const char* method : {"all-gather", "ring", "ulysses"}) {
      const Outcome outcome =
          shell(mpirun(2, "attend --in in.safetensors --out shared.safetensors --parallel " + std::string(method)));
      EXPECT_EQ(outcome.code, 2) << method << name << outcome.err;
      EXPECT_NE(outcome.err.find("in.safetensors\": " + name + " must be [2, "), std::string::npos) << outcome.err;
      EXPECT_EQ(files(), std::vector<std::string>{"in.safetensors"});
    }
  }
}

}  // namespace
}  // namespace qkv::test
