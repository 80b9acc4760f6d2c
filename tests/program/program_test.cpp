#include "stretto/program.hpp"

#include <gmock/gmock.h>

#include <random>

#include "program/program_text.hpp"
#include "program/random_program.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

TEST(Program, SaysWhatDoesNotFit) {
  Program program("p");
  const Program::Group pair = program.group(2), single = program.group(1);
  const Program::Value x = program.input(pair, {DType::f32, {4, 3}, ValuePlacement::along(1)});
  EXPECT_THAT(sentence_of([&] { program.group(0); }), HasSubstr("has 0 devices"));
  EXPECT_THAT(sentence_of([&] { program.input({2}, {DType::f32, {4}}); }), HasSubstr("has no group 2"));
  EXPECT_THAT(sentence_of([&] {
                program.input(pair, {DType::f32, {4}, ValuePlacement::along(1)});
              }),
              HasSubstr("along dimension 1"));
  EXPECT_THAT(sentence_of([&] { program.call("f", single, {x}, {}); }),
              HasSubstr("its input lies on group 0; move it there"));
  EXPECT_THAT(sentence_of([&] { program.call("f", pair, {{7}}, {}); }), HasSubstr("has no value 7"));
  EXPECT_THAT(sentence_of([&] { program.reduce(x, ReduceOp::sum, ValuePlacement::replicated()); }),
              HasSubstr("over 2 devices"));
  EXPECT_THAT(sentence_of([&] { program.output({7}); }), HasSubstr("has no value 7"));
}

TEST(Program, IsTheSameBehindText) {
  std::mt19937 draw(4);
  for (int i = 0; i < 100; ++i) {
    ProgramSetup setup{random_program(draw, 4, 8, i % 2 == 0), {{0}, {1, 2}}, "someone", 2.5, 3, Dispatch::op_by_op};
    const std::string text = to_text(setup);
    const ProgramSetup again = setup_from_text(text);
    EXPECT_EQ(to_text(again), text);
    EXPECT_EQ(again.program.values().size(), setup.program.values().size());
    EXPECT_EQ(again.groups, setup.groups);
  }
}

}  // namespace
}  // namespace stretto
