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

// What comes as a message ends in an error of one sentence, whatever it is.
TEST(Program, TextThatIsNoProgramIsRefused) {
  Program program("p");
  const Program::Group one = program.group(1);
  program.output(program.move(program.input(one, {DType::f32, {4}}), one, ValuePlacement::replicated()));
  const std::string good = to_text({program, {{0}}, "someone"});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    EXPECT_NE(text.find(from), std::string::npos) << text;
    return text.replace(text.find(from), from.size(), to);
  };
  setup_from_text(good);
  for (const std::string& text : {std::string(), std::string("[]"), good.substr(1), with("\"dispatch\":0", "\"dispatch\":3"),
                                  with("\"kind\":2", "\"kind\":3"), with("\"dtype\":1", "\"dtype\":-1"),
                                  with("\"op\":0", "\"op\":77"), with("\"weight\":1.0", "\"weight\":null")}) {
    expect_refusal([&] { setup_from_text(text); }, "text of a program");
  }
  expect_refusal([&] { setup_from_text(with("\"inputs\":[0]", "\"inputs\":[]")); }, "0 inputs and 1 outputs");
  expect_refusal([&] { setup_from_text(with("\"results\":[1]", "\"results\":[9]")); }, "has no value 9");
}

}  // namespace
}  // namespace stretto
