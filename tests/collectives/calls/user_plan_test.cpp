// Plans that callers make: checked, run, and entered into the ledger.
#include "collectives/calls/user_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "collectives/oracle.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using oracle::methods_of;
using oracle::Problem;

class EveryCollectiveAsAPlan : public testing::TestWithParam<Collective> {};
INSTANTIATE_TEST_SUITE_P(All, EveryCollectiveAsAPlan,
                         testing::Values(Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                         Collective::all_to_all, Collective::broadcast, Collective::reduce,
                                         Collective::gather, Collective::scatter),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

// Buffers of a problem as tensors, through the caller's plan.
void expect_right(const Communicator& group, const Problem& problem, Plan plan, const Stream& stream) {
  plan.name = "mine";
  for (const bool in_place : {false, true}) {
    if (in_place && !can_be_in_place(problem.collective)) continue;
    oracle::Buffers buffers(problem, group.rank(), in_place);
    const Call call = buffers.call();
    const auto wrapped = [&](const void* data, std::int64_t count) {
      return count == 0 ? Tensor() : Tensor::wrap(const_cast<void*>(data), {count}, problem.dtype);
    };
    const Operation operation =
        group.prepare(plan, wrapped(call.input, input_count(plan.request)), wrapped(call.output, output_count(plan.request)),
                      problem.op, {.tag = "own", .factor = problem.factor(group.rank())});
    EXPECT_EQ(operation.method(), Method(Algorithm::user));
    operation.start(stream).wait();
    ASSERT_EQ(buffers.fault(), "") << plan.to_string() << (in_place ? ", in place" : "");
    const Record record = group.job().ledger().last(1).back();
    EXPECT_EQ(record.method_text(), "mine");
    EXPECT_EQ(record.tag, "own");
    EXPECT_EQ(record.bytes_sent,
              static_cast<std::uint64_t>(plan.bytes_sent(static_cast<std::int64_t>(size_of(record.dtype)))));
  }
}

PlanRequest request_for(const Problem& problem, const Method& method, int rank) {
  PlanRequest request = problem.request(rank);
  request.method = method;
  if (needs_nodes(method.algorithm)) request.ranks_per_node = 2;
  if (method.algorithm == Algorithm::three_level) request.nodes_per_pod = 1;
  return request;
}

TEST_P(EveryCollectiveAsAPlan, RunsWhatTheRepertoireMakesOnItsOwnRules) {
  for (const int size : {1, 4}) {
    run_threads(size, [&](const Communicator& world) {
      const Stream stream("own");
      for (const Method& method : methods_of(GetParam(), size > 1)) {
        if (method.algorithm == Algorithm::automatic) continue;
        for (const std::int64_t count : {5, 24}) {
          const Problem problem{GetParam(), size, count};
          const Plan plan = make_plan(request_for(problem, method, world.rank()));
          expect_right(world, problem, plan, count == 5 ? Stream::inline_() : stream);
        }
      }
    });
  }
}

TEST(UserPlan, RoundsAndMultipliesAsTheLibraryDoes) {
  run_threads(3, [](const Communicator& world) {
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::push}) {
      for (const DType dtype : {DType::bf16, DType::i32}) {
        for (const ReduceOp op : {ReduceOp::avg, ReduceOp::premul_sum, ReduceOp::max}) {
          const Problem problem{Collective::all_reduce, 3, 12, dtype, op};
          expect_right(world, problem, make_plan(request_for(problem, algorithm, world.rank())), Stream::inline_());
        }
      }
    }
  });
}

TEST(UserPlan, SaysByWhichRulesItRuns) {
  const auto rules = [](Algorithm algorithm) { return rules_of(make_plan({Collective::all_reduce, algorithm, 0, 3, 12})); };
  EXPECT_EQ(rules(Algorithm::ring), Algorithm::user);
  EXPECT_EQ(rules(Algorithm::packet), Algorithm::pull);
  EXPECT_EQ(rules(Algorithm::staged), Algorithm::pull);
  EXPECT_EQ(rules(Algorithm::pull), Algorithm::pull);
  EXPECT_EQ(rules(Algorithm::push), Algorithm::push);
}

// A plan of rank 0 of 3, which reads and writes 4 elements.
Plan plan_of(const std::function<void(PlanBuilder&)>& tell, Collective collective = Collective::all_reduce) {
  PlanBuilder plan({collective, Algorithm::user, 0, 3, 4});
  tell(plan);
  return plan.finish();
}

std::string refusal_of(const Plan& plan) {
  return sentence_of(ErrorCode::invalid_argument, [&] { check_plan(plan); });
}

TEST(UserPlan, RefusesStepsThatCannotRun) {
  using testing::HasSubstr;
  const auto refusal = [](const std::function<void(PlanBuilder&)>& tell) { return refusal_of(plan_of(tell)); };
  EXPECT_EQ(refusal([](PlanBuilder& plan) { plan.send(1, input(2, 4)); }),
            "The plan 'user' cannot run on rank 0: Rank 0 touches elements [2, 6) of a buffer of 4.");
  EXPECT_THAT(refusal([](PlanBuilder& plan) { plan.send(3, input(0, 4)); }), HasSubstr("has rank 3 as its peer"));
  EXPECT_THAT(refusal([](PlanBuilder& plan) { plan.send(0, input(0, 4)); }), HasSubstr("has rank 0 as its peer"));
  EXPECT_THAT(refusal([](PlanBuilder& plan) { plan.recv(1, scratch(0, 4)); }), HasSubstr("[0, 4) of a buffer of 0"));
  EXPECT_THAT(refusal([](PlanBuilder& plan) { plan.recv(1, input(0, 4)); }), HasSubstr("writes to its input"));
  EXPECT_THAT(refusal([](PlanBuilder& plan) {
                plan.send(1, input(0, 2));
                plan.send(1, input(2, 2));
              }),
              HasSubstr("A round sends to rank 1 twice"));
  EXPECT_THAT(refusal([](PlanBuilder& plan) { plan.quantize(input(0, 4), packed(QuantizedFormat::int8, 0, 4), {}, 0); }),
              HasSubstr("quantizes"));
  EXPECT_THAT(refusal([](PlanBuilder& plan) {
                plan.signal();
                plan.send(1, input(0, 4));
              }),
              HasSubstr("messages or reductions beside steps between memories"));
  EXPECT_THAT(refusal([](PlanBuilder& plan) { plan.wait(1); }), HasSubstr("before its own first signal"));
  EXPECT_THAT(refusal([](PlanBuilder& plan) {
                plan.signal();
                plan.wait(1);
                plan.wait(1);
              }),
              HasSubstr("waits for rank 1 twice"));
  const auto read_from_2 = [](int heard, bool writes) {
    return [=](PlanBuilder& plan) {
      plan.signal();
      plan.wait(heard);
      writes ? plan.copy_to_all(2, input(0, 4), output(0, 4)) : plan.read(2, input(0, 4), output(0, 4));
    };
  };
  EXPECT_THAT(refusal(read_from_2(1, false)), HasSubstr("rank 2's memory before it has waited for it"));
  EXPECT_THAT(refusal(read_from_2(2, true)), HasSubstr("before it has waited for all other ranks"));
  check_plan(plan_of(read_from_2(2, false)));
}

TEST(UserPlan, RefusesNumbersThatNoMemoryHas) {
  const Plan right = plan_of([](PlanBuilder& plan) { plan.copy(input(0, 4), output(0, 4)); });
  const auto refusal = [&](const std::function<void(Plan&, Step&)>& change) {
    Plan plan = right;
    change(plan, plan.lanes.front().steps.front());
    return refusal_of(plan);
  };
  using testing::HasSubstr;
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_THAT(refusal([](Plan&, Step& step) { step.source.offset = step.source.count = huge; }), HasSubstr("in no memory"));
  EXPECT_THAT(refusal([](Plan&, Step& step) { step.source.offset = -1; }), HasSubstr("in no memory"));
  EXPECT_THAT(refusal([](Plan&, Step& step) { step.destination.count = 0; }), HasSubstr("without elements"));
  EXPECT_THAT(refusal([](Plan&, Step& step) { step.peer = 1; }), HasSubstr("A step without a peer names rank 1"));
  EXPECT_THAT(refusal([](Plan&, Step& step) { step.kind = static_cast<StepKind>(77); }), HasSubstr("a step of kind 77"));
  EXPECT_THAT(refusal([](Plan& plan, Step&) { plan.scratch_count = -1; }), HasSubstr("are negative"));
  EXPECT_THAT(refusal([](Plan& plan, Step&) { plan.lanes.front().round_ends = {2}; }), HasSubstr("do not end with them"));
  EXPECT_THAT(refusal([](Plan& plan, Step&) { plan.lanes.resize(5); }), HasSubstr("5 lanes"));
  EXPECT_THAT(refusal([](Plan& plan, Step&) { plan.name = "two words"; }), HasSubstr("called 'two words'"));
  EXPECT_THAT(refusal([](Plan& plan, Step&) { plan.request.collective = Collective::send; }), HasSubstr("is for a send"));
  check_plan(right);
}

TEST(UserPlan, RefusesAnotherPlaceAndOtherBuffers) {
  run_threads(2, [](const Communicator& world) {
    const auto plan = [&](int rank, int size) {
      return make_plan({Collective::all_gather, Algorithm::ring, rank, size, 4});
    };
    const Tensor four({4}, DType::f32), eight({8}, DType::f32);
    const int rank = world.rank();
    expect_refusal([&] { world.prepare(plan(1 - rank, 2), four, eight); }, "and this is rank");
    expect_refusal([&] { world.prepare(plan(rank, 3), four, eight); }, " of 3, and this is rank");
    expect_refusal([&] { world.prepare(plan(rank, 2), four, four); }, "reads 4 elements and writes 8");
    expect_refusal([&] { world.prepare(plan(rank, 2), four, Tensor({8}, DType::f64)); }, "8 f64");
    const auto on_the_first_share = [&] { world.prepare(plan(rank, 2), eight.view(0, {4}), eight); };
    if (rank == 0) {
      on_the_first_share();
    } else {
      expect_refusal(on_the_first_share, "overlap without being the same place");
    }
    expect_refusal([&] { world.prepare(plan(rank, 2), four, eight, ReduceOp::sum, {.method = Algorithm::ring}); },
                   "leave out OperationOptions::method");
  });
}

TEST(UserPlan, ThatWaitsForEverEndsByTheTimeout) {
  const std::string said = sentence_of(ErrorCode::timeout, [] {
    run_threads(2, [](const Communicator& world) {
      world.job().set_timeout(world.rank() == 0 ? 0.3 : 600);
      PlanBuilder plan({Collective::all_gather, Algorithm::user, world.rank(), 2, 4});
      plan.recv(1 - world.rank(), output(0, 4));  // nobody sends
      Plan waiting = plan.finish();
      waiting.name = "silence";
      const Operation operation = world.prepare(waiting, Tensor({4}, DType::f32), Tensor({8}, DType::f32));
      operation.start(Stream::inline_()).wait();
    });
  });
  EXPECT_THAT(said, testing::HasSubstr("for rank 1"));
  EXPECT_THAT(said, testing::HasSubstr("all_gather"));
}

TEST(UserPlan, OfOtherNamesAreNamedByTheCheck) {
  const Variable check("STRETTO_CHECK", "1");
  const std::string said = sentence_of(ErrorCode::invalid_argument, [] {
    run_threads(2, [](const Communicator& world) {
      Plan plan = make_plan({Collective::all_gather, Algorithm::ring, world.rank(), 2, 4});
      plan.name = world.rank() == 0 ? "here" : "there";
      world.prepare(plan, Tensor({4}, DType::f32), Tensor({8}, DType::f32)).start(Stream::inline_()).wait();
    });
  });
  EXPECT_THAT(said, testing::HasSubstr("by user, here"));
  EXPECT_THAT(said, testing::HasSubstr("by user, there"));
}

}  // namespace
}  // namespace stretto
