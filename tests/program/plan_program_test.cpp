#include "program/plan_program.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <numeric>
#include <random>

#include "program/random_program.hpp"
#include "stretto/program.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = ProgramAction::Kind;

std::vector<std::vector<int>> random_binding(std::mt19937& draw, const Program& program, int executors) {
  std::vector<std::vector<int>> groups;
  for (const int devices : program.groups()) {
    std::vector<int> all(static_cast<std::size_t>(executors));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), draw);
    groups.emplace_back(all.begin(), all.begin() + devices);
  }
  return groups;
}

TEST(PlanProgram, RandomProgramsPass) {
  std::mt19937 draw(21);
  std::size_t moves = 0, frees = 0;
  for (int i = 0; i < 1000; ++i) {
    const int executors = 1 + static_cast<int>(draw() % 8);
    const Program program = random_program(draw, executors, 12, i % 2 == 0);
    const ProgramPlan plan = plan_program(program, random_binding(draw, program, executors), executors);
    ASSERT_NO_THROW(check(program, plan)) << plan.to_string(program);
    moves += plan.moves.size();
    for (const auto& list : plan.lists) {
      for (const ProgramAction& action : list) frees += action.frees.size();
    }
  }
  EXPECT_GT(moves, 1000u);
  EXPECT_GT(frees, 1000u);
}

// Two stages: f on 0 and 1, a move to 2 and 3, g there, a move back, h on 0 and 1.
struct Stages {
  Program program{"stages"};
  ProgramPlan plan;
  Stages() {
    const ValueType by_rows{DType::f32, {8, 2}, ValuePlacement::along(0)};
    const Program::Group a = program.group(2), b = program.group(2);
    const Program::Value x = program.input(a, by_rows);
    const Program::Value f = program.call("f", a, {x}, {by_rows}).front();
    const Program::Value there = program.move(f, b, ValuePlacement::along(1));
    const Program::Value g = program.call("g", b, {there}, {by_rows}).front();
    const Program::Value back = program.move(g, a, ValuePlacement::along(0));
    program.output(program.call("h", a, {back, f}, {by_rows}).front());
    plan = plan_program(program, {{0, 1}, {2, 3}}, 4);
  }
};

std::vector<Kind> kinds(const std::vector<ProgramAction>& list) {
  std::vector<Kind> result;
  for (const ProgramAction& action : list) result.push_back(action.kind);
  return result;
}

TEST(PlanProgram, ListsOfTwoStages) {
  const Stages two;
  EXPECT_THAT(kinds(two.plan.lists[0]),
              ElementsAre(Kind::call, Kind::start_move, Kind::finish_move, Kind::start_move, Kind::finish_move, Kind::call));
  EXPECT_THAT(kinds(two.plan.lists[2]),
              ElementsAre(Kind::start_move, Kind::finish_move, Kind::call, Kind::start_move, Kind::finish_move));
  EXPECT_EQ(two.plan.moves.size(), 2u);
  // Executor 0 holds x, f, what has come back and h's result, of 4 rows of 2 each, when h runs.
  EXPECT_EQ(two.plan.peak_bytes[0], 4 * 4 * 2 * 4);
  check(two.program, two.plan);
}

TEST(PlanProgram, EqualMovesArePlannedOnce) {
  Program program("loop");
  const Program::Group a = program.group(2), b = program.group(2);
  Program::Value x = program.input(a, {DType::f32, {4}, ValuePlacement::along(0)});
  for (int i = 0; i < 5; ++i)
    x = program.move(program.move(x, b, ValuePlacement::replicated()), a, ValuePlacement::along(0));
  program.output(x);
  const ProgramPlan plan = plan_program(program, {{0, 1}, {2, 3}}, 4);
  EXPECT_EQ(plan.moves.size(), 2u);
  check(program, plan);
}

TEST(PlanProgram, PlantedFaultsAreRefusedWithTheirPlace) {
  const auto refused = [](const std::function<void(ProgramPlan&)>& plant) {
    Stages two;
    plant(two.plan);
    return sentence_of([&] { check(two.program, two.plan); });
  };
  const auto at = [](ProgramPlan& plan, int executor, std::size_t i) -> ProgramAction& {
    return plan.lists[static_cast<std::size_t>(executor)][i];
  };
  const auto erase = [](ProgramPlan& plan, std::size_t executor, int i) {
    plan.lists[executor].erase(plan.lists[executor].begin() + i);
  };
  const auto executor = [](int number, const char* what) {
    return AllOf(HasSubstr("executor " + std::to_string(number)), HasSubstr(what));
  };
  // Steps that are missing, or come in another order.
  EXPECT_THAT(refused([&](ProgramPlan& p) { erase(p, 0, 5); }), executor(1, "call of step 4 (h)"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { erase(p, 0, 0); }), executor(0, "value 1 is not there"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { erase(p, 2, 0); }), executor(2, "was not started"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { erase(p, 2, 1); }), executor(2, "value 2 is not there"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { erase(p, 2, 4); }), executor(2, "moves of steps 3 are not finished"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.lists[3].clear(); }), executor(0, "finish_move of step 1"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { std::swap(at(p, 0, 0), at(p, 0, 1)); }), executor(0, "value 1 is not there"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { std::swap(at(p, 0, 4), at(p, 0, 5)); }), executor(0, "value 4 is not there"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { std::swap(at(p, 0, 1), at(p, 0, 3)); }), executor(0, "was not started"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.lists[0].push_back(at(p, 0, 4)); }), executor(0, "has been finished"));
  EXPECT_THAT(refused([&](ProgramPlan& p) {
                const ProgramAction again = at(p, 0, 0);
                p.lists[0].push_back(again);
                p.lists[1].push_back(again);
              }),
              executor(1, "a second time"));
  // Actions of others.
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.lists[2].push_back(at(p, 0, 0)); }), executor(2, "not its own"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { at(p, 0, 0).kind = Kind::reduce; }), executor(0, "not its own"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { at(p, 0, 0).step = 9; }), executor(0, "an action of step 9"));
  // Memory.
  EXPECT_THAT(refused([&](ProgramPlan& p) { at(p, 0, 1).frees.push_back(1); }), executor(0, "the move of step 1 uses it"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { at(p, 0, 2).frees.push_back(1); }), executor(0, "value 1 is not there"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { at(p, 0, 5).frees.push_back(1); }), executor(0, "is freed, and is not there"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { at(p, 0, 5).frees.clear(); }), executor(0, "is never freed"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { at(p, 0, 5).frees.push_back(5); }), executor(0, "the client wants it"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { at(p, 0, 5).makes.clear(); }), executor(0, "the step has 5 here"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { at(p, 0, 4).makes.push_back(5); }), executor(0, "belongs to the start"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { --p.peak_bytes[1]; }), executor(1, "and the plan says"));
  // Moves.
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.moves[0].plan.phases[0].pop_back(); }), HasSubstr("the move of step 1"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { std::swap(p.move_of_step[1], p.move_of_step[3]); }),
              HasSubstr("other divisions"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.move_of_step[1] = 7; }), HasSubstr("step 1 names move 7 of 2"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.moves[0].plan.tensors.clear(); }), HasSubstr("step 1 is of 0 tensors"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.moves[0].ranks[3] = 9; }), HasSubstr("are executors 0, 1, 2, 9"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.moves[0].ranks.pop_back(); }), HasSubstr("among 4 ranks"));
  // Executors of groups.
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.groups.pop_back(); }), HasSubstr("has 2 groups, and its plan is for 1"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.groups[1][1] = 4; }), HasSubstr("group 1 is bound to executors 2, 4"));
  EXPECT_THAT(refused([&](ProgramPlan& p) { p.groups[0] = {1, 1}; }), HasSubstr("group 0 is bound to executors 1, 1"));
}

TEST(PlanProgram, NodesAreThoseOfAllExecutors) {
  Program program("p");
  const Program::Group pair = program.group(2);
  program.call("f", pair, {}, {});
  expect_refusal([&] { plan_program(program, {{0, 1}}, 2, {0}); }, "planned for 2 executors, and nodes of 1");
}

// Two programs' actions in opposite orders on two executors: what one order for all prevents.
TEST(PlanProgram, OppositeOrdersWaitForEver) {
  Program program("crossing");
  const Program::Group a = program.group(2), b = program.group(2);
  program.call("of one", a, {}, {});
  program.call("of another", b, {}, {});
  ProgramPlan plan = plan_program(program, {{0, 1}, {0, 1}}, 2);
  check(program, plan);
  std::swap(plan.lists[1][0], plan.lists[1][1]);
  EXPECT_THAT(sentence_of([&] { check(program, plan); }),
              AllOf(HasSubstr("would wait for ever"), HasSubstr("executor 0 at action 0, call of step 0 (of one)"),
                    HasSubstr("executor 1 at action 0, call of step 1 (of another)")));
}

TEST(PlanProgram, RefusesOtherExecutors) {
  Program program("p");
  program.group(2);
  EXPECT_THAT(sentence_of([&] { plan_program(program, {}, 2); }), HasSubstr("has 1 groups"));
  EXPECT_THAT(sentence_of([&] { plan_program(program, {{0}}, 2); }), HasSubstr("has 2 devices, and 1 executors"));
  EXPECT_THAT(sentence_of([&] { plan_program(program, {{0, 2}}, 2); }), HasSubstr("executors 0, 2"));
}

}  // namespace
}  // namespace stretto
