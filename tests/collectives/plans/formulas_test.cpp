// What the ranks send, in the plans and in the ledger of real runs, against closed formulas.
#include "collectives/plans/formulas.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>

#include <fmt/format.h>

#include "collectives/oracle.hpp"
#include "stretto/planning/proof.hpp"
#include "support/tiers.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using formulas::Pairs;
using oracle::Buffers;
using oracle::Problem;

Pairs pairs_of(const std::vector<Plan>& plans) {
  Pairs pairs;
  for (const Plan& plan : plans) pairs.push_back(plan.request.counts);
  return pairs;
}

// What is wrong, or nothing.
std::string divergence(const std::vector<Plan>& plans) {
  const PlanRequest& request = plans.front().request;
  const std::int64_t formula = formulas::elements_sent(request, pairs_of(plans));
  std::int64_t sum = 0;
  for (const Plan& plan : plans) {
    const std::int64_t sent = plan.elements_sent();
    if (request.servers == 0 && formulas::all_send_alike(request) && sent * request.size != formula) {
      return fmt::format("rank {} sends {} elements; the formula says {} by {} ranks alike", plan.request.rank, sent,
                         formula, request.size);
    }
    sum += sent;
  }
  return sum == formula ? "" : fmt::format("the ranks send {} elements; the formula says {}", sum, formula);
}

std::vector<int> sizes() {
  std::vector<int> list(all_tests() ? 20 : 17);
  std::iota(list.begin(), list.end(), 1);
  for (const int size : {31, 32, 33}) list.push_back(size);
  if (all_tests()) list.push_back(64);
  return list;
}

std::vector<Collective> every_collective() {
  std::vector<Collective> list;
  for (int i = 0; i <= static_cast<int>(Collective::barrier); ++i) list.push_back(static_cast<Collective>(i));
  return list;
}

class Formulas : public testing::TestWithParam<Collective> {};
INSTANTIATE_TEST_SUITE_P(All, Formulas, testing::ValuesIn(every_collective()),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

// Every root; counts that divide evenly and others; uneven shares, lanes, pieces and nodes.
TEST_P(Formulas, AreWhatThePlansSend) {
  for (const Algorithm algorithm : algorithms_for(GetParam())) {
    for (const int size : sizes()) {
      for (const ProofCase& which : proof_cases(GetParam(), algorithm, size)) {
        ASSERT_EQ(divergence(plans_of(which)), "") << to_string(which);
      }
    }
  }
}

// One share too few or too many, in every case in which somebody sends any.
TEST_P(Formulas, NoticeAMessageTooFewOrTooMany) {
  for (const Algorithm algorithm : algorithms_for(GetParam())) {
    int changed = 0;
    for (const ProofCase& which : proof_cases(GetParam(), algorithm, 6)) {
      const std::vector<Plan> plans = plans_of(which);
      const auto sender =
          std::find_if(plans.begin(), plans.end(), [](const Plan& plan) { return plan.elements_sent() > 0; });
      if (sender == plans.end()) continue;
      for (const bool twice : {false, true}) {
        std::vector<Plan> wrong = plans;
        for (Lane& lane : wrong[static_cast<std::size_t>(sender - plans.begin())].lanes) {
          const auto message = std::find_if(lane.steps.begin(), lane.steps.end(), [](const Step& step) {
            return step.kind == StepKind::send || step.kind == StepKind::read || step.kind == StepKind::read_reduce ||
                   step.kind == StepKind::copy_to_all;
          });
          if (message == lane.steps.end()) continue;
          if (twice) {
            lane.steps.push_back(Step(*message));
          } else {
            lane.steps.erase(message);
          }
          break;
        }
        EXPECT_NE(divergence(wrong), "") << to_string(which);
        ++changed;
      }
    }
    EXPECT_GT(changed, 0) << name(algorithm);
  }
}

TEST(FormulasOfLanesAndPieces, DoNotDependOnTheirNumber) {
  for (const char* text : {"ring*3", "ring*4", "bidirectional_ring*2", "chain/16", "double_binary_tree/16"}) {
    const Method method = method_from_text(text);
    for (const Collective collective : every_collective()) {
      const auto& known = algorithms_for(collective);
      if (std::find(known.begin(), known.end(), method.algorithm) == known.end()) continue;
      for (const int size : sizes()) {
        for (const std::int64_t count : {1, 7, 1009}) {
          std::vector<Plan> plans;
          for (int rank = 0; rank < size; ++rank) {
            plans.push_back(make_plan({collective, method, rank, size, count, has_root(collective) ? size / 2 : 0}));
          }
          ASSERT_EQ(divergence(plans), "") << name(collective) << " by " << text << ", " << size << " ranks, " << count;
        }
      }
    }
  }
}

// No rank sends more than (p-1)/p n in a phase, at any p: p - 1 shares, none of which is longer than n/p rounded up.
// Rounding adds less than one element for each of them.
TEST(BandwidthBoundAlgorithms, SendNoMoreThanAllSharesButOneAPhase) {
  using enum Algorithm;
  const std::map<Collective, std::vector<Algorithm>> algorithms{
      {Collective::all_reduce, {ring, bidirectional_ring, recursive_halving_doubling, two_shot}},
      {Collective::reduce_scatter, {ring, bidirectional_ring, recursive_halving_doubling, pairwise, direct}},
      {Collective::all_gather, {ring, bidirectional_ring, recursive_halving_doubling, bruck, direct}},
      {Collective::all_to_all, {pairwise, direct}}};
  std::vector<int> many = sizes();
  for (const int size : {63, 97, 100, 127, 128}) many.push_back(size);
  for (const int size : many) {
    for (const std::int64_t n : {1, size - 1, size, size + 1, 7 * size, 7 * size + size / 2, 1009}) {
      for (const auto& [collective, list] : algorithms) {
        const std::int64_t phases = collective == Collective::all_reduce ? 2 : 1;
        const std::int64_t share = (n + size - 1) / size;
        for (const Algorithm algorithm : list) {
          for (int rank = 0; rank < size; ++rank) {
            PlanRequest request{collective, algorithm, rank, size, collective == Collective::all_to_all ? share : n};
            if (counts_shares(collective) && collective != Collective::all_to_all) {
              request.count = 0;
              for (int r = 0; r < size; ++r) request.counts.push_back(n / size + (r < n % size ? 1 : 0));
            }
            ASSERT_LE(make_plan(request).elements_sent(), phases * (size - 1) * share)
                << name(collective) << " by " << name(algorithm) << ", rank " << rank << " of " << size << ", n " << n;
          }
        }
      }
    }
  }
}

// Sums of narrow floats are rounded once: by algorithms that carry partial sums they travel as f32. An order has nothing to
// round, and a factor is applied before anything leaves.
DType type_on_the_wire(const Problem& problem, Algorithm algorithm) {
  const bool exact = problem.op == ReduceOp::min || problem.op == ReduceOp::max;
  const bool narrow = problem.dtype == DType::bf16 || problem.dtype == DType::f16 || problem.dtype == DType::f8e4m3 ||
                      problem.dtype == DType::f8e5m2;
  if (!reduces(problem.collective) || !narrow || exact) return problem.dtype;
  const bool whole_contributions = algorithm == Algorithm::one_shot || algorithm == Algorithm::two_shot ||
                                   algorithm == Algorithm::server_set || algorithm == Algorithm::direct ||
                                   shares_memory(algorithm);
  return whole_contributions && problem.op != ReduceOp::premul_sum ? problem.dtype : DType::f32;
}

// nodes: a request that says where the ranks lie.
std::vector<Method> methods_of(Collective collective, const PlanRequest& nodes, bool uneven) {
  const bool on_nodes = nodes.ranks_per_node > 0 || !nodes.node_sizes.empty();
  std::vector<Method> methods = oracle::methods_of(collective, on_nodes && !uneven);
  const bool exchanges = collective == Collective::all_to_all;
  std::erase_if(methods, [&](const Method& method) {
    return uneven && exchanges && method.algorithm != Algorithm::automatic && !takes_uneven_exchange(method.algorithm);
  });
  if (!counts_shares(collective) || nodes.node_sizes.empty()) return methods;
  // Blocks of uneven nodes go straight to their ranks.
  std::erase_if(methods, [](const Method& method) { return method.algorithm == Algorithm::three_level; });
  for (Method& method : methods) {
    if (!needs_nodes(method.algorithm)) continue;
    method.between = Algorithm::direct;
    if (exchanges) method.inside = Algorithm::direct;
  }
  return methods;
}

struct Entry {
  Method method;
  Record record;
};

using Ledgers = std::vector<std::vector<Entry>>;  // by rank

// Runs problems of one size by every method, all in one group. Returns what the ranks' ledgers then say, by problem.
std::vector<Ledgers> ledgers_of(const std::vector<Problem>& problems, const PlanRequest& nodes) {
  const auto size = static_cast<std::size_t>(problems.front().size);
  std::vector<Ledgers> ledgers(problems.size(), Ledgers(size));
  run_threads(problems.front().size, [&](const Communicator& world) {
    for (std::size_t i = 0; i < problems.size(); ++i) {
      const Problem& problem = problems[i];
      const bool uneven = !problem.counts.empty() || !problem.matrix.empty();
      for (const Method& method : methods_of(problem.collective, nodes, uneven)) {
        const Buffers buffers(problem, world.rank(), false);
        OperationOptions options;
        options.method = method;
        options.factor = problem.factor(world.rank());
        const std::uint64_t since = world.job().ledger().next_sequence();
        const Operation operation = world.prepare(buffers.call(), options);
        operation.start(Stream::inline_()).wait();
        const auto records = world.job().ledger().records(since);
        ASSERT_EQ(records.size(), 1U);
        ledgers[i][static_cast<std::size_t>(world.rank())].push_back({operation.method(), records.front()});
      }
    }
  });
  return ledgers;
}

void expect_bytes_of_the_formulas(const Problem& problem, const Ledgers& ledgers, const PlanRequest& nodes) {
  for (std::size_t i = 0; i < ledgers.front().size(); ++i) {
    const Method& method = ledgers.front()[i].method;
    const DType wire = type_on_the_wire(problem, method.algorithm);
    std::int64_t sum = 0;
    for (const auto& ledger : ledgers) {
      const Record& record = ledger.at(i).record;
      ASSERT_EQ(ledger[i].method, method);
      EXPECT_EQ(record.method.algorithm, method.algorithm);
      EXPECT_EQ(record.dtype, wire) << record.to_string();
      sum += static_cast<std::int64_t>(record.bytes_sent);
    }
    PlanRequest request = problem.request(0);
    request.method = method;
    request.ranks_per_node = nodes.ranks_per_node;
    request.node_sizes = nodes.node_sizes;
    request.nodes_per_pod = nodes.nodes_per_pod;
    EXPECT_EQ(sum, formulas::elements_sent(request, problem.matrix) * static_cast<std::int64_t>(size_of(wire)))
        << name(problem.collective) << " by " << to_string(method) << " of " << problem.count << " " << name(problem.dtype)
        << " over " << problem.size << ", root " << problem.root;
  }
}

void expect_bytes_of_the_formulas(const std::vector<Problem>& problems, const PlanRequest& nodes = {}) {
  const std::vector<Ledgers> ledgers = ledgers_of(problems, nodes);
  for (std::size_t i = 0; i < problems.size(); ++i) expect_bytes_of_the_formulas(problems[i], ledgers[i], nodes);
}

std::vector<Collective> collectives_that(bool (*fit)(Collective)) {
  std::vector<Collective> list;
  for (int i = 0; i < static_cast<int>(Collective::barrier); ++i) {
    if (fit(static_cast<Collective>(i))) list.push_back(static_cast<Collective>(i));
  }
  return list;
}

// In real runs; a barrier has no buffers, see BarriersAndMessages.
class LedgerFormulas : public testing::TestWithParam<Collective> {};
INSTANTIATE_TEST_SUITE_P(All, LedgerFormulas, testing::ValuesIn(collectives_that([](Collective) { return true; })),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });
class UnevenLedgerFormulas : public testing::TestWithParam<Collective> {};
INSTANTIATE_TEST_SUITE_P(All, UnevenLedgerFormulas, testing::ValuesIn(collectives_that(counts_shares)),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

// Even counts and others, narrow and wide types, by every algorithm and by what the library chooses.
TEST_P(LedgerFormulas, AreItsBytes) {
  for (const int size : of_today({1, 3, 2, 4, 5, 6, 8, 7})) {
    std::vector<Problem> problems;
    for (const std::int64_t count : {0, 24 * size, 24 * size + 5}) {
      for (const DType dtype : {DType::f64, DType::bf16, DType::u8, DType::f8e4m3}) {
        Problem problem{GetParam(), size, count, dtype};
        for (const int root : std::set<int>{0, size - 1}) {
          problem.root = root;
          if (root == 0 || has_root(GetParam())) problems.push_back(problem);
        }
      }
    }
    if (reduces(GetParam())) {
      for (const ReduceOp op : oracle::all_ops) problems.push_back({GetParam(), size, 17, DType::f16, op});
    }
    expect_bytes_of_the_formulas(problems);
  }
}

TEST_P(UnevenLedgerFormulas, AreItsBytes) {
  for (int size = 1; size <= 8; ++size) {
    Problem problem{GetParam(), size};
    problem.root = size / 2;
    for (int rank = 0; rank < size; ++rank) problem.counts.push_back(rank * 5 % 7 * 3);
    if (GetParam() == Collective::all_to_all) {
      problem.counts.clear();
      for (int from = 0; from < size; ++from) {
        problem.matrix.emplace_back();
        for (int to = 0; to < size; ++to) problem.matrix.back().push_back((from * 3 + to) % 4);
      }
    }
    expect_bytes_of_the_formulas({problem});
  }
}

TEST_P(LedgerFormulas, AreItsBytesOnVirtualNodes) {
  const std::map<std::string, PlanRequest> all_nodes{
      {"2", {.size = 8, .ranks_per_node = 2, .nodes_per_pod = 2}},
      {"3", {.size = 6, .ranks_per_node = 3, .nodes_per_pod = 1}},
      {"3,1,2,2", {.size = 8, .node_sizes = {3, 1, 2, 2}, .nodes_per_pod = 2}}};
  for (const auto& [text, nodes] : all_nodes) {
    const Variable ranks_per_node("STRETTO_RANKS_PER_NODE", text);
    const Variable nodes_per_pod("STRETTO_NODES_PER_POD", std::to_string(nodes.nodes_per_pod));
    Problem problem{GetParam(), nodes.size, 50, DType::bf16};
    problem.root = 4;
    expect_bytes_of_the_formulas({problem}, nodes);
  }
}

TEST(FormulasOf, BarriersAndMessagesAreTheBytesInTheLedger) {
  for (int size = 1; size <= 8; ++size) {
    std::atomic<std::int64_t> barrier = 0;
    std::atomic<Algorithm> barrier_by = Algorithm::automatic;
    std::atomic<std::int64_t> messages = 0;
    run_threads(size, [&](const Communicator& world) {
      const std::uint64_t since = world.job().ledger().next_sequence();
      world.barrier(Stream::inline_()).wait();
      const std::uint64_t behind = world.job().ledger().next_sequence();
      barrier += static_cast<std::int64_t>(world.job().ledger().traffic(since).bytes_sent);
      barrier_by = world.job().ledger().records(since).front().method.algorithm;
      if (size == 1) return;
      const std::vector<std::byte> out(100);
      std::vector<std::byte> in(100);
      const int next = (world.rank() + 1) % size;
      world.send_recv(out.data(), 50, next, in.data(), 50, (world.rank() + size - 1) % size, DType::bf16, Stream::inline_())
          .wait();
      for (const Record& record : world.job().ledger().records(behind)) {
        PlanRequest request{record.collective, record.method, world.rank(), size, record.count, next};
        EXPECT_EQ(record.bytes_sent, 2U * formulas::elements_sent(request)) << record.to_string();
        messages += static_cast<std::int64_t>(record.bytes_sent);
      }
    });
    PlanRequest request{Collective::barrier, barrier_by.load(), 0, size, 1};
    EXPECT_EQ(barrier, 4 * formulas::elements_sent(request)) << size;
    EXPECT_EQ(messages, size == 1 ? 0 : 100 * size);
  }
}

}  // namespace
}  // namespace stretto
