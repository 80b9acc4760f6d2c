// Which modules get an adapter, of what rank and scale: as peft says it for the same names, or refused by name.
#include "stretto/layers/adapter.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "stretto/models/families.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

const DecoderShape gpt2{.layers = 3};
const DecoderShape llama = llama_shape({.layers = 12});

// Rank and scale by record, of all modules with an adapter.
std::map<std::string, Adapter> adapters(const AdapterOptions& options, const DecoderShape& shape) {
  options.check(shape);
  std::map<std::string, Adapter> result;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const LinearModule& module : linear_modules(shape, layer)) {
      if (const auto adapter = adapter_of(options, shape, module)) result[module.record] = *adapter;
    }
  }
  return result;
}

std::string sentence(AdapterOptions options, const DecoderShape& shape = llama) {
  if (options.rank == 0) options.rank = 4;
  return sentence_of([&] { options.check(shape); });
}

TEST(Adapter, UsualTargetsAreThoseOfPeft) {
  EXPECT_EQ(adapters({.rank = 8}, gpt2),
            (std::map<std::string, Adapter>{
                {"h.0.attn.c_attn", {8, 1}}, {"h.1.attn.c_attn", {8, 1}}, {"h.2.attn.c_attn", {8, 1}}}));
  const auto found = adapters({.rank = 8}, llama);
  EXPECT_EQ(found.size(), 24U);
  EXPECT_TRUE(found.contains("h.11.attn.c_attn.q") && found.contains("h.11.attn.c_attn.v"));
}

TEST(Adapter, NamesMeanTheLastPartsOfPaths) {
  EXPECT_EQ(adapters({.rank = 2, .targets = {"c_proj"}}, gpt2).size(), 6U);
  EXPECT_EQ(adapters({.rank = 2, .targets = {"attn.c_proj"}}, gpt2).size(), 3U);
  EXPECT_EQ(adapters({.rank = 2, .targets = {"all-linear"}}, gpt2).size(), 12U);
  EXPECT_EQ(adapters({.rank = 2, .targets = {"all-linear"}}, llama).size(), 84U);
  EXPECT_EQ(adapters({.rank = 2, .targets = {"up_proj", "gate_proj"}, .layers_to_transform = {0, 2}}, llama).size(), 4U);
  DecoderShape no_gate = llama;
  no_gate.activation = kernels::Activation::gelu_tanh;
  EXPECT_TRUE(adapters({.rank = 2, .targets = {"up_proj"}}, no_gate).contains("h.0.mlp.c_fc"));
}

TEST(Adapter, AnExpressionMatchesTheWholePath) {
  const auto of = [](const char* expression) { return adapters({.rank = 2, .expression = expression}, llama).size(); };
  EXPECT_EQ(of(R"(model\.layers\.3\.self_attn\.q_proj)"), 1U);
  EXPECT_EQ(of(R"(.*\.[01]\..*(down|up)_proj)"), 4U);  // and not 10, 11
  EXPECT_THAT(sentence({.expression = "q_proj"}),
              testing::HasSubstr("must match the whole of a path like model.layers.0.self_attn.q_proj"));
  EXPECT_THAT(sentence({.expression = "q_proj("}), testing::HasSubstr("'q_proj(' is no regular expression"));
}

TEST(Adapter, ScaleIsAlphaByRankOrItsRoot) {
  const AdapterOptions options{.rank = 4, .alpha = 6};
  EXPECT_EQ(adapters(options, gpt2)["h.0.attn.c_attn"], (Adapter{4, 1.5}));
  EXPECT_EQ(adapters({.rank = 4, .alpha = 6, .uses_root = true}, gpt2)["h.0.attn.c_attn"], (Adapter{4, 3}));
}

// The first pattern that matches counts, for the whole last parts of a path; ranks are those that divide alpha.
TEST(Adapter, PatternsGiveOtherRanksAndAlphas) {
  auto found = adapters({.rank = 4,
                         .alpha = 8,
                         .rank_pattern = {{"layers.1.self_attn.q_proj", 2}, {"q_proj", 16}},
                         .alpha_pattern = {{"layers\\.[12]\\..*", 32}}},
                        llama);
  EXPECT_EQ(found["h.0.attn.c_attn.q"], (Adapter{16, 0.5}));
  EXPECT_EQ(found["h.1.attn.c_attn.q"], (Adapter{2, 16}));
  EXPECT_EQ(found["h.1.attn.c_attn.v"], (Adapter{4, 8}));
  EXPECT_EQ(found["h.11.attn.c_attn.v"], (Adapter{4, 2}));
}

TEST(Adapter, WhatMatchesNothingIsRefusedByName) {
  EXPECT_EQ(sentence({.targets = {"q_proj", "c_attn"}}),
            "There is no module c_attn to adapt; the model has q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
            "down_proj, or all-linear.");
  EXPECT_THAT(sentence({.targets = {"proj"}}), testing::HasSubstr("no module proj"));
  EXPECT_THAT(sentence({.layers_to_transform = {12}}), testing::HasSubstr("There is no layer 12"));
  EXPECT_THAT(sentence({.expression = ".*q_proj", .layers_to_transform = {1}}), testing::HasSubstr(".*q_proj"));
  EXPECT_THAT(sentence({.targets = {"q_proj"}, .expression = ".*"}), testing::HasSubstr("leave one out"));
  EXPECT_THAT(sentence({.rank_pattern = {{"up_proj", 2}}}), testing::HasSubstr("The rank of up_proj is for no module"));
  EXPECT_THAT(sentence({.alpha_pattern = {{"layers.4", 2}}}), testing::HasSubstr("The alpha of layers.4 is for no module"));
  EXPECT_THAT(sentence({.rank_pattern = {{"q_proj", 0}}}), testing::HasSubstr("The rank 0 of q_proj makes no adapter"));
  EXPECT_THAT(sentence({.alpha = 0}), testing::HasSubstr("alpha of 0"));
  EXPECT_THAT(sentence({.rank = -1}), testing::HasSubstr("rank -1"));
  EXPECT_THAT(sentence({.dropout = 1}), testing::HasSubstr("cannot drop 1 of their inputs"));
  EXPECT_THAT(sentence({.dropout = -0.1}), testing::HasSubstr("cannot drop -0.1"));
  EXPECT_EQ(sentence({.dropout = 0.9}), "");
  EXPECT_THAT(sentence_of([] { AdapterOptions{.targets = {"c_fc"}}.check(gpt2); }), testing::HasSubstr("give a rank"));
  EXPECT_EQ(sentence_of([] { AdapterOptions{}.check(gpt2); }), "");
}

}  // namespace
}  // namespace stretto
