// Rules, tuning files and methods as text, and the errors for wrong ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/selection/requests.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

TEST(Rules, AreReadAgainFromTheirText) {
  const std::string text =
      "all_reduce:0-4096:recursive_doubling;all_reduce:4096-inf:ring*2;broadcast@8:0-inf:chain/16;reduce:0-inf:auto";
  EXPECT_EQ(to_text(rules_from_text(text, "test")), text);
  EXPECT_EQ(to_text(std::vector<Rule>()), "");
}

TEST(Rules, SayWhatIsWrongWithThem) {
  const auto sentence = [](const char* text) { return sentence_of([&] { rules_from_text(text, "STRETTO_ALGO"); }); };
  EXPECT_THAT(sentence("ring"), HasSubstr("'ring' in STRETTO_ALGO is no rule"));
  EXPECT_THAT(sentence("all_reduc:ring"), HasSubstr("'all_reduc' is no collective"));
  EXPECT_THAT(sentence("all_reduce:rings"), HasSubstr("'rings' is no algorithm"));
  EXPECT_THAT(sentence("all_reduce:4k:ring"), HasSubstr("'4k' in STRETTO_ALGO is no range"));
  EXPECT_THAT(sentence("all_reduce:8k-4k:ring"), HasSubstr("'8k-4k' in STRETTO_ALGO is empty"));
  EXPECT_THAT(sentence("all_reduce:0-4q:ring"), HasSubstr("'4q'"));
  EXPECT_THAT(sentence("all_reduce@x:ring"), HasSubstr("'x' in STRETTO_ALGO is no number of ranks"));
  EXPECT_THAT(sentence("all_reduce@0:ring"), HasSubstr("'@0' in STRETTO_ALGO"));
  EXPECT_THAT(sentence("all_reduce:"), HasSubstr("'all_reduce:' in STRETTO_ALGO ends without a method"));
  EXPECT_THAT(sentence("all_reduce:ring,;broadcast:chain"), HasSubstr("'all_reduce:ring,' in STRETTO_ALGO ends without"));
  EXPECT_THAT(sentence("all_reduce:0-4k:"), HasSubstr("ends without a method"));
  EXPECT_THAT(sentence("broadcast:ring"), HasSubstr("'ring' for broadcast, which cannot be done that way"));
  EXPECT_THAT(sentence("all_reduce:ring*9"), HasSubstr("9"));
  EXPECT_THAT(sentence("all_reduce:one_shot/4"), HasSubstr("one_shot"));
  EXPECT_THAT(sentence("all_reduce:two_shot/4"), HasSubstr("'two_shot/4' for all_reduce, which only what is quantized"));
  EXPECT_THAT(sentence("all_reduce:two_level/4"), HasSubstr("rules are of plain calls"));
  EXPECT_TRUE(rules_from_text("", "STRETTO_ALGO").empty());
}

TEST(TuningFile, SaysWhatIsWrongWithIt) {
  const auto sentence = [](const std::string& text) { return sentence_of([&] { Tuning::from_json(text, "a.json"); }); };
  EXPECT_THAT(sentence("{"), HasSubstr("a.json cannot be read as a tuning file"));
  EXPECT_THAT(sentence("{}"), HasSubstr("a.json"));
  EXPECT_THAT(sentence(R"({"routes": []})"), HasSubstr("no routes"));
  std::string zero = two_routes;
  zero.replace(zero.find("\"bandwidth_gbs\": 10"), 19, "\"bandwidth_gbs\": 0");
  EXPECT_THAT(sentence(zero), HasSubstr("bandwidth_gbs = 0"));
  EXPECT_THAT(sentence(R"({"route": [], "routes": []})"), HasSubstr("a.json has the key 'route'"));
  std::string misspelt = two_routes;
  misspelt.replace(misspelt.find("\"table\""), 7, "\"tables\"");
  EXPECT_THAT(sentence(misspelt), HasSubstr("A route in a.json has the key 'tables'"));
  std::string with_machine = two_routes;
  with_machine.replace(0, 1, R"({"machine": "any", "table": "broadcast:chain", )");
  EXPECT_EQ(sentence(with_machine), "");
  std::string symmetric = two_routes;
  symmetric.replace(symmetric.find("\"table\""), 7, R"("symmetric_table": "reduce:push", "table")");
  const RouteCost both = Tuning::from_json(symmetric, "a.json").routes[0];
  ASSERT_EQ(both.symmetric_rules.size(), 1U);
  EXPECT_EQ(both.symmetric_rules[0].method, Method(Algorithm::push));
  EXPECT_EQ(both.rules.size(), 2U);
  symmetric.replace(symmetric.find("reduce:push"), 11, "gather:push");
  EXPECT_THAT(sentence(symmetric), HasSubstr("'push' for gather, which cannot be done that way"));
  const Tuning tuning = Tuning::from_json(two_routes, "a.json");
  EXPECT_DOUBLE_EQ(tuning.routes[0].cost.quantize, 0.4e-9);  // 4 bytes at 10 GB/s
  std::string quantizing = two_routes;
  quantizing.replace(quantizing.find("\"lane_gain\""), 11, "\"quantize_ns\": 0.25, \"lane_gain\"");
  EXPECT_DOUBLE_EQ(Tuning::from_json(quantizing, "a.json").routes[0].cost.quantize, 0.25e-9);
  quantizing.replace(quantizing.find("0.25"), 4, "-1.0");
  EXPECT_THAT(sentence(quantizing), HasSubstr("quantize_ns = -1"));
  for (const char* ranks : {"0", "2.5", "1e87", "4294967298", "\"2\""}) {
    std::string odd = two_routes;
    odd.replace(odd.find("\"ranks\": 4"), 10, std::string("\"ranks\": ") + ranks);
    EXPECT_THAT(sentence(odd), HasSubstr("it must be a whole number from 1 to 1048576")) << ranks;
  }
  EXPECT_EQ(tuning.nearest("ucx", 8, 1).ranks, 2);
  EXPECT_THAT(sentence_of([&] { tuning.nearest("nccl", 2, 1); }), HasSubstr("'nccl'"));
}

TEST(Method, IsReadAsItIsWritten) {
  for (const char* text : {"ring", "ring*4", "chain/16", "two_level(ring+two_shot)", "auto"}) {
    EXPECT_EQ(to_string(method_from_text(text)), text);
  }
  for (const char* text : {"ring*", "ring*0", "ring/2", "chain/x", "two_level", "ring(a+b)", "two_level(ring)", ""}) {
    EXPECT_NE(sentence_of([&] { make_plan({Collective::all_reduce, method_from_text(text), 0, 2, 4}); }), "") << text;
  }
}

}  // namespace
}  // namespace stretto
