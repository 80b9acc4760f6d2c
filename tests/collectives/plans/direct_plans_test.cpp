// The plans of the all-to-all, direct and shared-memory families, run on integers by all ranks in one thread.
// Messages are not buffered. Contributions are random words, so that a sum that lacks one or has one twice is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <numeric>
#include <set>

#include "collectives/plans/cost_of_plans.hpp"
#include "stretto/error.hpp"
#include "stretto/plan.hpp"

namespace stretto {
namespace {

using Word = std::uint64_t;
using Words = std::vector<Word>;
using Combine = Word (*)(Word, Word);

Word sum(Word a, Word b) { return a + b; }
Word in_order(Word a, Word b) { return 31 * a + b; }  // neither commutative nor associative

// What a rank holds in its k-th input element.
Word word_of(int rank, std::int64_t k) {
  Word x = static_cast<Word>(rank + 1) * 0x9E3779B97F4A7C15U + static_cast<Word>(k + 1) * 0xC2B2AE3D27D4EB4FU;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9U;
  return x ^ (x >> 29);
}

// One collective with the shapes of all its ranks. pairs[r][q]: what rank r sends to rank q in an uneven all_to_all.
struct Shape {
  Collective collective;
  Method method;
  int size;
  std::int64_t count = 0;
  int root = 0;
  std::vector<std::int64_t> counts = {};
  std::vector<std::vector<std::int64_t>> pairs = {};

  PlanRequest request(int rank) const {
    PlanRequest request{collective, method, rank, size, count, root, counts, {}};
    if (pairs.empty()) return request;
    request.counts = pairs[rank];
    for (const auto& row : pairs) request.receive_counts.push_back(row[rank]);
    return request;
  }
  std::string text() const {
    std::string text = std::string(name(collective)) + " by " + to_string(method) + ", " + std::to_string(size) +
                       " ranks, " + std::to_string(count) + " elements, root " + std::to_string(root);
    for (const std::int64_t each : counts) text += " " + std::to_string(each);
    return text;
  }
  std::int64_t share(int rank) const { return counts.empty() ? count : counts[rank]; }
  std::int64_t shares(int ranks) const {
    std::int64_t all = 0;
    for (int rank = 0; rank < ranks; ++rank) all += share(rank);
    return all;
  }
  std::int64_t pair(int from, int to) const { return pairs.empty() ? count : pairs[from][to]; }

  std::int64_t inputs(int rank) const {
    switch (collective) {
      case Collective::reduce_scatter: return shares(size);
      case Collective::scatter: return rank == root ? shares(size) : 0;
      case Collective::broadcast: return rank == root ? count : 0;
      case Collective::all_to_all: {
        std::int64_t all = 0;
        for (int to = 0; to < size; ++to) all += pair(rank, to);
        return all;
      }
      default: return share(rank);
    }
  }
  // What every rank's output must be.
  Words outputs(int rank, Combine combine) const {
    Words result;
    const auto append = [&](int from, std::int64_t first, std::int64_t n) {
      for (std::int64_t k = first; k < first + n; ++k) result.push_back(word_of(from, k));
    };
    const auto append_reduced = [&](std::int64_t first, std::int64_t n) {
      for (std::int64_t k = first; k < first + n; ++k) {
        Word word = word_of(0, k);
        for (int from = 1; from < size; ++from) word = combine(word, word_of(from, k));
        result.push_back(word);
      }
    };
    switch (collective) {
      case Collective::all_reduce: append_reduced(0, count); break;
      case Collective::reduce_scatter: append_reduced(shares(rank), share(rank)); break;
      case Collective::reduce:
        if (rank == root) append_reduced(0, count);
        break;
      case Collective::broadcast: append(root, 0, count); break;
      case Collective::scatter: append(root, shares(rank), share(rank)); break;
      case Collective::gather:
        if (rank != root) break;
        [[fallthrough]];
      case Collective::all_gather:
        for (int from = 0; from < size; ++from) append(from, 0, share(from));
        break;
      case Collective::all_to_all:
        for (int from = 0; from < size; ++from) {
          std::int64_t first = 0;
          for (int to = 0; to < rank; ++to) first += pair(from, to);
          append(from, first, pair(from, rank));
        }
        break;
      default: break;
    }
    return result;
  }
  // Where input and output begin in memory that they share.
  std::array<std::int64_t, 2> places(int rank) const {
    switch (collective) {
      case Collective::reduce_scatter: return {0, shares(rank)};
      case Collective::all_gather: return {shares(rank), 0};
      case Collective::gather: return {rank == root ? shares(rank) : 0, 0};
      case Collective::scatter: return {0, rank == root ? shares(rank) : 0};
      default: return {0, 0};
    }
  }
};

struct Fault {
  std::string sentence;
};
void demand(bool condition, const std::string& sentence) {
  if (!condition) throw Fault{sentence};
}

// All ranks at once. Throws Fault for what the plans' rules forbid.
class Run {
 public:
  Run(const Shape& shape, bool in_place, Combine combine) : shape_(shape), combine_(combine) {
    for (int rank = 0; rank < shape.size; ++rank) {
      plans_.push_back(make_plan(shape.request(rank)));
      demand(plans_.back().lanes.size() == 1, "more than one lane");
      const auto inputs = shape.inputs(rank);
      const Words outputs = shape.outputs(rank, combine);
      if (reduces(shape.collective)) complete_.insert(outputs.begin(), outputs.end());
      const auto length = static_cast<std::int64_t>(outputs.size());
      const auto places = in_place ? shape.places(rank) : std::array<std::int64_t, 2>{0, inputs};
      const std::int64_t user = std::max(places[0] + inputs, places[1] + length);
      rooms_.push_back({{{places[0], inputs}, {places[1], length}, {user, plans_[rank].scratch_count}}});
      memory_.emplace_back(user + plans_[rank].scratch_count, Word{0xDEAD});
      for (std::int64_t k = 0; k < inputs; ++k) memory_[rank][places[0] + k] = word_of(rank, k);
    }
    round_.resize(plans_.size());
    open_.resize(plans_.size());
    signals_.resize(plans_.size());
    waiting_.resize(plans_.size());
  }

  void run() {
    for (int rank = 0; rank < shape_.size; ++rank) begin_round(rank);
    for (int rank = 0; rank < shape_.size; ++rank) {
      demand(round_[rank] == lane(rank).round_ends.size(), "rank " + std::to_string(rank) + " waits forever");
      const auto [begin, count] = rooms_[rank][1];
      const Words result(memory_[rank].begin() + begin, memory_[rank].begin() + begin + count);
      demand(result == shape_.outputs(rank, combine_), "rank " + std::to_string(rank) + " has a wrong result");
    }
  }

 private:
  struct Room {
    std::int64_t begin, count;
  };

  const Lane& lane(int rank) const { return plans_[rank].lanes[0]; }

  Word* at(int rank, const Slice& slice) {
    const Room& room = rooms_[rank][static_cast<std::size_t>(slice.buffer)];
    demand(slice.offset >= 0 && slice.offset + slice.count <= room.count, "a slice outside of its buffer");
    return memory_[rank].data() + room.begin + slice.offset;
  }

  void begin_round(int rank) {
    if (round_[rank] == lane(rank).round_ends.size()) return;
    const std::size_t begin = round_[rank] == 0 ? 0 : lane(rank).round_ends[round_[rank] - 1];
    const std::size_t end = lane(rank).round_ends[round_[rank]];
    check_apart(rank, begin, end);
    open_[rank] = static_cast<int>(end - begin) + 1;
    for (std::size_t i = begin; i < end; ++i) post(rank, lane(rank).steps[i]);
    close_one(rank);
  }

  void close_one(int rank) {
    if (--open_[rank] > 0) return;
    ++round_[rank];
    begin_round(rank);
  }

  void check_apart(int rank, std::size_t begin, std::size_t end) {
    std::vector<int> writers(memory_[rank].size(), -1);
    const auto visit = [&](const Slice& slice, int step, bool writes) {
      const Word* first = at(rank, slice);
      for (std::int64_t k = 0; k < slice.count; ++k) {
        int& writer = writers[first + k - memory_[rank].data()];
        demand(writer == -1 || writer == step, "steps of a round that touch the same memory");
        if (writes) writer = step;
      }
    };
    const auto touches = [&](const Step& step, StepKind other) {  // a copy onto itself, in place, is left out
      const bool moves = step.kind == StepKind::copy || (step.kind == StepKind::copy_to_all && step.peer == rank);
      return step.kind != other && (!moves || at(rank, step.source) != at(rank, step.destination));
    };
    for (std::size_t i = begin; i < end; ++i) {
      const Step& step = lane(rank).steps[i];
      const bool elsewhere = step.kind == StepKind::read_reduce && step.peer != everybody && step.peer != rank;
      if (touches(step, StepKind::send) && !elsewhere) visit(step.destination, static_cast<int>(i), true);
    }
    for (std::size_t i = begin; i < end; ++i) {
      const Step& step = lane(rank).steps[i];
      const bool elsewhere = (step.kind == StepKind::read || step.kind == StepKind::copy_to_all) && step.peer != rank;
      if (touches(step, StepKind::recv) && !elsewhere) visit(step.source, static_cast<int>(i), false);
    }
  }

  void post(int rank, const Step& step) {
    const bool sends = step.kind == StepKind::send;
    if (step.kind == StepKind::copy || step.kind == StepKind::reduce) {
      work(rank, step);
      return close_one(rank);
    }
    if (between_memories(step.kind)) return share(rank, step);
    demand(step.peer >= 0 && step.peer < shape_.size && step.peer != rank, "a peer that is none");
    const auto direction = sends ? std::pair(rank, step.peer) : std::pair(step.peer, rank);
    auto& mine = sends ? sends_ : receives_;
    auto& theirs = sends ? receives_ : sends_;
    const auto partner = theirs.find(direction);
    if (partner == theirs.end()) {
      demand(mine.emplace(direction, &step).second, "two messages one way at a time");
      return;
    }
    const Step& other = *partner->second;
    theirs.erase(partner);
    transfer(direction.first, sends ? step : other, direction.second, sends ? other : step);
    close_one(direction.first);
    close_one(direction.second);
  }

  void work(int rank, const Step& step) {
    const Word* from = at(rank, step.source);
    Word* to = at(rank, step.destination);
    const std::int64_t n = step.destination.count;
    if (step.kind == StepKind::copy) {
      demand(step.source.count == n, "a copy of another length");
      std::copy_n(Words(from, from + n).begin(), n, to);
      return;
    }
    demand(step.source.count % n == 0 && step.source.count > n, "a reduction of no vectors");
    for (std::int64_t k = 0; k < n; ++k) {
      Word word = from[k];
      for (std::int64_t v = n; v < step.source.count; v += n) word = combine_(word, from[v + k]);
      to[k] = word;
      check_finished(step, word);
    }
  }

  void share(int rank, const Step& step) {
    if (step.kind == StepKind::signal) {
      ++signals_[rank];
      std::vector<int> told, others;
      for (const int waiting : waiting_[rank]) (signals_[waiting] <= signals_[rank] ? told : others).push_back(waiting);
      waiting_[rank] = others;
      for (const int waiting : told) close_one(waiting);
    } else if (step.kind == StepKind::wait) {
      if (signals_[step.peer] < signals_[rank]) return waiting_[step.peer].push_back(rank);
    } else if (step.kind == StepKind::read) {
      demand(step.source.count == step.destination.count, "a read of another length");
      std::copy_n(at(step.peer, step.source), step.source.count, at(rank, step.destination));
    } else if (step.kind == StepKind::copy_to_all) {
      demand(step.source.count == step.destination.count, "a spread of another length");
      const Word* const from = at(step.peer, step.source);
      const Words words(from, from + step.source.count);
      for (int owner = 0; owner < shape_.size; ++owner) std::copy(words.begin(), words.end(), at(owner, step.destination));
    } else {
      read_reduce(step);
    }
    close_one(rank);
  }

  void read_reduce(const Step& step) {
    demand(step.source.count == step.destination.count, "a reduction of another length");
    for (std::int64_t k = 0; k < step.source.count; ++k) {
      Word word = at(0, step.source)[k];
      for (int from = 1; from < shape_.size; ++from) word = combine_(word, at(from, step.source)[k]);
      check_finished(step, word);
      for (int owner = 0; owner < shape_.size; ++owner) {
        if (step.peer == everybody || step.peer == owner) at(owner, step.destination)[k] = word;
      }
    }
  }

  void transfer(int sender, const Step& send, int receiver, const Step& receive) {
    const std::int64_t n = send.source.count;
    demand(receive.destination.count == n, "a message of another length than is expected");
    const Word* from = at(sender, send.source);
    Word* to = at(receiver, receive.destination);
    const bool adds = receive.kind == StepKind::recv_reduce;
    demand(!adds || receive.source.count == n, "an operand of another length");
    const Word* operand = adds ? at(receiver, receive.source) : nullptr;
    for (std::int64_t k = 0; k < n; ++k) {
      to[k] = adds ? combine_(from[k], operand[k]) : from[k];
      if (adds) check_finished(receive, to[k]);
    }
  }

  void check_finished(const Step& step, Word word) const {
    demand(step.finishes == (complete_.count(word) > 0), step.finishes ? "finished too early" : "never finished");
  }

  const Shape& shape_;
  Combine combine_;
  std::vector<Plan> plans_;
  std::vector<Words> memory_;
  std::vector<std::array<Room, 3>> rooms_;  // by Buffer
  std::set<Word> complete_;                 // the sums with all contributions
  std::vector<std::size_t> round_;
  std::vector<int> open_;
  std::vector<int> signals_;
  std::vector<std::vector<int>> waiting_;  // by the rank that must signal
  std::map<std::pair<int, int>, const Step*> sends_, receives_;
};

std::string fault_of(const Shape& shape, bool in_place, Combine combine = sum) {
  try {
    Run(shape, in_place, combine).run();
    return "";
  } catch (const Fault& fault) {
    return fault.sentence;
  }
}

void expect_right(const Shape& shape, Combine combine = sum) {
  ASSERT_EQ(fault_of(shape, false, combine), "") << shape.text();
  if (can_be_in_place(shape.collective)) {
    ASSERT_EQ(fault_of(shape, true, combine), "") << shape.text() << ", in place";
  }
}

struct Case {
  Collective collective;
  Algorithm algorithm;
};

const std::vector<Case> cases{
    {Collective::all_to_all, Algorithm::pairwise},   {Collective::all_to_all, Algorithm::bruck},
    {Collective::all_to_all, Algorithm::direct},     {Collective::reduce_scatter, Algorithm::pairwise},
    {Collective::reduce_scatter, Algorithm::direct}, {Collective::all_gather, Algorithm::bruck},
    {Collective::all_gather, Algorithm::direct},     {Collective::all_reduce, Algorithm::one_shot},
    {Collective::all_reduce, Algorithm::two_shot},   {Collective::broadcast, Algorithm::direct},
    {Collective::reduce, Algorithm::direct},         {Collective::gather, Algorithm::direct},
    {Collective::scatter, Algorithm::direct}};

std::vector<Case> cases_of_uneven_shares(const std::vector<Case>& among) {
  std::vector<Case> list;
  for (const Case& each : among) {
    const bool refused = each.collective == Collective::all_to_all && !takes_uneven_exchange(each.algorithm);
    if (counts_shares(each.collective) && !refused) list.push_back(each);
  }
  return list;
}

std::string case_name(const testing::TestParamInfo<Case>& parameter) {
  return std::string(name(parameter.param.collective)) + "_" + name(parameter.param.algorithm);
}

std::vector<Case> cases_of_shared_memory() {
  std::vector<Case> list;
  for (int i = 0; i < static_cast<int>(Collective::barrier); ++i) {
    const auto collective = static_cast<Collective>(i);
    for (const Algorithm algorithm : algorithms_for(collective)) {
      if (shares_memory(algorithm)) list.push_back({collective, algorithm});
    }
  }
  return list;
}

TEST(Repertoire, SaysWhatCanBeDone) {
  EXPECT_TRUE(can_do(Collective::all_reduce, Algorithm::ring));
  EXPECT_FALSE(can_do(Collective::all_reduce, Algorithm::bruck));
  EXPECT_FALSE(can_do(Collective::all_reduce, Algorithm::automatic));
}

class OneLevel : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, OneLevel, testing::ValuesIn(cases), case_name);

INSTANTIATE_TEST_SUITE_P(SharedMemory, OneLevel, testing::ValuesIn(cases_of_shared_memory()), case_name);

class OneLevelCost : public testing::TestWithParam<Case> {};  // of shared memory, the simulator's tests know it
INSTANTIATE_TEST_SUITE_P(All, OneLevelCost, testing::ValuesIn(cases), case_name);

class UnevenShares : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, UnevenShares, testing::ValuesIn(cases_of_uneven_shares(cases)), case_name);
INSTANTIATE_TEST_SUITE_P(SharedMemory, UnevenShares, testing::ValuesIn(cases_of_uneven_shares(cases_of_shared_memory())),
                         case_name);

int roots(Collective collective, int size) { return has_root(collective) ? size : 1; }

TEST_P(OneLevel, IsRightAtAnySizeAndRoot) {
  const auto [collective, algorithm] = GetParam();
  for (int size = 1; size <= 20; ++size) {
    for (const std::int64_t count : {0, 1, 2, 7}) {
      for (int root = 0; root < roots(collective, size); ++root)
        expect_right({.collective = collective, .method = algorithm, .size = size, .count = count, .root = root});
    }
  }
}

TEST_P(UnevenShares, AreTakenAndEmptyOnes) {
  const auto [collective, algorithm] = GetParam();
  for (int size = 1; size <= 20; ++size) {
    for (const int pattern : {0, 1, 2}) {
      const auto length = [&](int i) { return std::array{i % 3, (i * i + 1) % 5, i == size / 2 ? 4 : 0}[pattern]; };
      Shape shape{.collective = collective, .method = algorithm, .size = size};
      for (int rank = 0; rank < size; ++rank) shape.counts.push_back(length(rank));
      if (collective == Collective::all_to_all) {
        for (int rank = 0; rank < size; ++rank) {
          shape.pairs.emplace_back();
          for (int to = 0; to < size; ++to) shape.pairs[rank].push_back(length(3 * rank + to));
        }
      }
      for (shape.root = 0; shape.root < roots(collective, size); ++shape.root) expect_right(shape);
    }
  }
}

// The control of all these: what has no form in place is refused there.
TEST(Direct, AllToAllCannotBeInPlace) {
  const Shape shape{.collective = Collective::all_to_all, .method = Algorithm::direct, .size = 3, .count = 2};
  EXPECT_EQ(fault_of(shape, false), "");
  EXPECT_THAT(fault_of(shape, true), testing::HasSubstr("touch the same memory"));
}

// Only a plan whose every sum is formed in the order of ranks can pass this; pairwise, for one, does not.
TEST(Direct, SumsInRankOrder) {
  for (int size = 1; size <= 12; ++size) {
    for (const std::int64_t count : {1, 5, 30}) {
      expect_right({.collective = Collective::reduce_scatter, .method = Algorithm::direct, .size = size, .count = count},
                   in_order);
      expect_right({.collective = Collective::all_reduce, .method = Algorithm::one_shot, .size = size, .count = count},
                   in_order);
      expect_right({.collective = Collective::all_reduce, .method = Algorithm::two_shot, .size = size, .count = count},
                   in_order);
      expect_right({.collective = Collective::reduce, .method = Algorithm::direct, .size = size, .count = count}, in_order);
      for (const auto& [collective, algorithm] : cases_of_shared_memory())
        expect_right({.collective = collective, .method = algorithm, .size = size, .count = count}, in_order);
    }
  }
  EXPECT_NE(fault_of({.collective = Collective::reduce_scatter, .method = Algorithm::pairwise, .size = 3, .count = 1}, false,
                     in_order),
            "");
}

void expect_cost(const Shape& shape) {
  const Cost formula = cost_of(shape.request(0));
  std::vector<Plan> all;
  for (int rank = 0; rank < shape.size; ++rank) all.push_back(make_plan(shape.request(rank)));
  const Cost plans = cost_of_plans(all);
  EXPECT_EQ(formula.rounds, plans.rounds) << shape.text();
  EXPECT_EQ(formula.messages, plans.messages) << shape.text();
  EXPECT_EQ(formula.sent, plans.sent) << shape.text();
  EXPECT_EQ(formula.work, plans.work) << shape.text();
}

TEST_P(OneLevelCost, IsItsFormula) {
  for (int size = 1; size <= 17; ++size) {
    const std::int64_t count = GetParam().collective == Collective::all_reduce ? 3 * size : 3;
    expect_cost({.collective = GetParam().collective,
                 .method = GetParam().algorithm,
                 .size = size,
                 .count = count,
                 .root = size / 2});
  }
}

TEST(MakePlan, RefusesUnevenBlocksByBruckInASentence) {
  const PlanRequest request{Collective::all_to_all, Algorithm::bruck, 0, 2, 0, 0, {1, 2}, {1, 0}};
  EXPECT_THROW(cost_of(request), Error);
  try {
    make_plan(request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("choose pairwise or direct"));
  }
}

}  // namespace
}  // namespace stretto
