#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "stretto/error.hpp"
#include "stretto/launch.hpp"

namespace stretto {
namespace {

using Json = nlohmann::ordered_json;

// The choices of a job that had this rule for every sum.
std::string with_rule(const std::string& choices, const std::string& method) {
  Json all = Json::parse(choices);
  all["tuning"]["table"] = "all_reduce:0-inf:" + method;
  return all.dump();
}

TEST(Choices, AJobChoosesAsAnotherOne) {
  run_threads(3, [](const Communicator& world) {
    const std::string mine = world.choices();
    EXPECT_EQ(world.choose_by(mine), "");
    for (const char* const method : {"ring", "recursive_doubling"}) {
      EXPECT_EQ(world.choose_by(with_rule(mine, method)), "");
      std::vector<float> values(1000);
      const Call sum{Collective::all_reduce, values.data(), values.data(), 1000};
      EXPECT_EQ(to_string(world.duplicate("again").prepare(sum).method()), method);
      EXPECT_EQ(Json::parse(world.choices()), Json::parse(with_rule(mine, method)));
    }
  });
}

TEST(Choices, WhereItCannotItSaysWhyAndGoesOn) {
  run_threads(3, [](const Communicator& world) {
    const std::string mine = world.choices();
    Json other = Json::parse(mine);
    other["conditions"]["ranks"] = "4";
    EXPECT_THAT(world.choose_by(other.dump()), testing::AllOf(testing::HasSubstr("4"), testing::HasSubstr("3")));
    EXPECT_THAT(world.choose_by(with_rule(mine, "a_method_of_tomorrow")), testing::HasSubstr("a_method_of_tomorrow"));
    for (const char* const text : {"", "{", "[]", "{}", R"({"conditions": {}, "tuning": {}, "learnt": 3})"}) {
      EXPECT_NE(world.choose_by(text), "") << text;
    }
    EXPECT_EQ(world.choices(), mine);
    const Communicator second = world.duplicate("second");
    EXPECT_THROW(world.choose_by(mine), Error);
  });
}

}  // namespace
}  // namespace stretto
