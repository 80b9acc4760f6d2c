// A seed gives the same text on every layout of the model.
#include "apps/train/run/sampling.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

#include "apps/train/report/printable.hpp"
#include "parity.hpp"
#include "stretto/kernels.hpp"
#include "stretto/models/families.hpp"

namespace parity {
namespace {

std::string text_of(int tensor_size, const apps::SamplingOptions& how, const std::string& prompt = "To be") {
  TrainingOptions options = tiny({1, 1});
  options.model.vocabulary = 256;
  std::vector<std::string> texts(static_cast<std::size_t>(tensor_size));
  run_threads(tensor_size, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {{Axis::tensor, tensor_size}, {Axis::data, 1}}), options);
    texts[static_cast<std::size_t>(world.rank())] = apps::sample(trainer, prompt, how);
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts.front());
  return texts.front();
}

TEST(Sampling, DoesNotDependOnTheLayout) {
  const apps::SamplingOptions how{.length = 60, .temperature = 1, .seed = 5};  // longer than the model's sequence of 48
  const std::string text = text_of(1, how);
  EXPECT_EQ(text.size(), 65U);
  EXPECT_EQ(text.substr(0, 5), "To be");
  for (const int tensor_size : {2, 4, 8}) {
    EXPECT_EQ(text_of(tensor_size, how), text) << tensor_size;
  }
  EXPECT_EQ(text_of(1, how), text);
  EXPECT_NE(text_of(1, {.length = 60, .temperature = 1, .seed = 6}), text) << "the control: another seed";
}

TEST(Sampling, TakesTheLikeliestAtTemperatureZero) {
  const std::string text = text_of(1, {.length = 40, .temperature = 0, .seed = 1});
  EXPECT_EQ(text_of(2, {.length = 40, .temperature = 0, .seed = 2}), text);
  EXPECT_EQ(text_of(4, {.length = 40, .temperature = 0, .seed = 3}), text);
}

TEST(Sampling, ChoosesAmongTheLikeliest) {
  const apps::SamplingOptions greedy{.length = 40, .temperature = 0};
  const std::string text = text_of(1, greedy);
  EXPECT_EQ(text_of(1, {.length = 40, .temperature = 1, .top_k = 1}), text);
  EXPECT_EQ(text_of(1, {.length = 40, .temperature = 1, .top_p = 1e-9}), text);
  EXPECT_NE(text_of(1, {.length = 40, .temperature = 1, .top_k = 8}), text) << "the control";
  EXPECT_EQ(text_of(1, {.length = 40, .temperature = 1, .top_k = 256}),
            text_of(1, {.length = 40, .temperature = 1, .top_k = 300}));
}

// The fewest of the likeliest tokens whose probabilities reach top_p: also the one that reaches it.
TEST(Sampling, ChoosesAlsoTheTokenThatReachesTopP) {
  TrainingOptions options = tiny({1, 1});
  options.model.vocabulary = 256;
  run_threads(1, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {{Axis::data, 1}}), options);
    const std::vector<std::int32_t> prompt{3, 1, 4};
    const Tensor p = trainer.next_logits(prompt).clone();
    kernels::softmax(p, p);
    std::vector<std::int32_t> order(256);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater(), [&](std::int32_t token) { return p.at(token); });
    const double top_p = p.at(order[0]) + p.at(order[1]) / 2;
    std::set<std::int32_t> chosen;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      chosen.insert(
          apps::sample_tokens(trainer, prompt, 256, {.length = 1, .temperature = 1, .top_p = top_p, .seed = seed}).back());
    }
    EXPECT_EQ(chosen, (std::set{order[0], order[1]}));
  });
}

// Keys and values of earlier tokens are kept; what comes out is what whole sequences give.
TEST(Sampling, GrowsASequenceAsIfItWereComputedWhole) {
  for (const Layout layout : {Layout{}, {.tensor = 2}, {.pipeline = 2}, {.tensor = 2, .pipeline = 2}}) {
    for (const bool is_llama : {false, true}) {
      TrainingOptions options = tiny({.tensor = layout.tensor});
      options.model.kv_heads = options.model.heads / 2;
      if (is_llama) options.model = llama_shape(options.model);
      options.mask.window = 7;
      run_threads(layout.ranks(), [&](const Communicator& world) {
        Trainer trainer(Mesh(world, layout.mesh()), options);
        const auto difference = [&](const Tensor& a, const Tensor& b) {
          double most = 0;
          for (std::int64_t i = 0; a && i < a.size(); ++i) most = std::max(most, std::abs(a.at(i) - b.at(i)));
          return most;
        };
        std::vector<std::int32_t> tokens{3, 1, 4};
        for (const std::int32_t next : {1, 5, 9, 2, 6, 5, 3, 5, 8}) {
          tokens.push_back(next);
          const Tensor grown = trainer.next_logits(tokens);
          std::vector<std::int32_t> other = tokens;
          ++other.front();
          const Tensor of_others = trainer.next_logits(other);  // another sequence: nothing is kept
          const Tensor whole = trainer.next_logits(tokens);
          EXPECT_LT(difference(grown, whole), 1e-12);
          if (grown) {
            EXPECT_GT(difference(of_others, whole), 1e-6) << "the control";
          }
        }
        trainer.step(text_of_step(options, 0), 1e-2);
        tokens.push_back(7);
        const Tensor grown = trainer.next_logits(tokens);
        ++tokens.front();
        trainer.next_logits(tokens);
        --tokens.front();
        EXPECT_LT(difference(grown, trainer.next_logits(tokens)), 1e-12) << "an update changes what was kept";
      });
    }
  }
}

TEST(Printable, ShowsWhatATerminalMustNotGet) {
  EXPECT_EQ(apps::printable("a line\n\tcaf\u00e9 \u6771\u4eac \U0001F600"), "a line\n\tcaf\u00e9 \u6771\u4eac \U0001F600");
  EXPECT_EQ(apps::printable(std::string("\0\r\x1b[31m\x7f", 8)), "\\x00\\x0d\\x1b[31m\\x7f");
  EXPECT_EQ(apps::printable("\xff\x80z\xc3"), "\\xff\\x80z\\xc3");
  EXPECT_EQ(apps::printable("\xc2\x9b\xc0\xaf"), "\\xc2\\x9b\\xc0\\xaf")
      << "a control character of Latin-1, and a long slash";
  EXPECT_EQ(apps::printable("\xed\xa0\x80\xf4\x90\x80\x80"), "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(apps::printable("\xe6\x9d"), "\\xe6\\x9d") << "half a character";
}

TEST(Sampling, BeginsALineWithoutAPrompt) {
  const std::string text = text_of(1, {.length = 3}, "");
  EXPECT_EQ(text.size(), 4U);
  EXPECT_EQ(text.front(), '\n');
}

}  // namespace
}  // namespace parity
