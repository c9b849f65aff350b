// The lesson's engine as a library: what the page calls, against the library's own calls; an error is a sentence. Its
// bits in the page: engine_test.js.
#include <gtest/gtest.h>

#include <cmath>

#include "qkv/lm/generate.h"
#include "qkv/lm/trainer.h"

extern "C" {
int lesson_start(const char* text, const char* task, int heads, int layers, int blocks, int dim, int context,
    double seed, double rate, int batch);
double lesson_steps(int n);
const float* lesson_trace(const char* prompt, const int* cut, int cuts, int causal, int scale, int positions);
double lesson_loss();
const char* lesson_generate(const char* prompt, int n, double temperature, double seed, const int* cut, int cuts);
const char* lesson_error();
}

namespace qkv::test {
namespace {

TEST(LessonFace, TrainsTracesAndContinuesAsTheLibraryDoes) {
  const std::string text = lm::default_text();
  const lm::CharTokenizer tokenizer = lm::CharTokenizer::from_text(text);
  Context context({.threads = 1, .isa = Isa::kScalar});
  lm::AttentionLM model({.vocab_size = 7, .num_heads = 2});
  const lm::BatchSource source = lm::BatchSource::windows(tokenizer.encode(text), {}, 0);
  lm::Trainer trainer(model, {.steps = 30});
  const double loss = trainer.run(source, context).losses.back();

  EXPECT_EQ(lesson_start("", "text", 2, 1, 0, 32, 16, 0, 0.003, 32), model.parameter_count());
  EXPECT_EQ(lesson_steps(30), loss);
  const float* found = lesson_trace("abc", nullptr, 0, 1, 1, 1);
  ASSERT_NE(found, nullptr);
  const std::vector<Index> ids = tokenizer.encode("abc");
  const std::vector<Tensor<float>> layers = model.attention_weights({ids.data(), {1, 3}}, context);
  const Tensor<float>& weights = layers.front();
  const float* traced = found + 3 + 3 * 3 * 32 + 2 * 9;  // behind sizes, q, k, v and scores
  for (Index n = 0; n < weights.count(); ++n) EXPECT_EQ(traced[n], weights.data()[n]);
  EXPECT_GT(lesson_loss(), 0);
  EXPECT_NE(lesson_trace("a", nullptr, 0, 1, 1, 1), nullptr);
  EXPECT_TRUE(std::isnan(lesson_loss())) << "behind one character nothing is there to compare with";
  EXPECT_EQ(lesson_generate("abc", 9, 0, 0, nullptr, 0),
      tokenizer.decode(lm::generate(model, ids, {.tokens = 9, .greedy = true}, context)));
}

TEST(LessonFace, AnErrorIsASentence) {
  lesson_error();
  EXPECT_EQ(lesson_start("", "text", 3, 1, 0, 32, 16, 0, 0.003, 32), 0);
  EXPECT_NE(std::string(lesson_error()).find("num_heads must divide embed_dim"), std::string::npos);
  EXPECT_STREQ(lesson_error(), "");
  lesson_start("", "text", 1, 1, 0, 32, 16, 0, 0.003, 32);
  const int cut[] = {0, 1};
  EXPECT_EQ(lesson_trace("abc", cut, 1, 1, 1, 1), nullptr);
  EXPECT_STRNE(lesson_error(), "");
}

}  // namespace
}  // namespace qkv::test
