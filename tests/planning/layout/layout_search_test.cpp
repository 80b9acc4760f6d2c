#include "stretto/planning/layout_search.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>

#include "planning/layout/layout_machine.hpp"

namespace stretto {
namespace {

LayoutSpace small_space() {
  LayoutSpace space{.model = {.layers = 8, .hidden = 128, .heads = 4, .sequence = 64, .vocabulary = 500},
                    .ranks = 8,
                    .global_batch = 32,
                    .memory_bytes = std::int64_t{1} << 40};
  space.sharding.dtype = DType::bf16;
  return space;
}

TrainingCluster nodes_of_four(double network_gbs) {
  TrainingCluster cluster = machine_without_memory_time();
  cluster.memory_bytes_per_second = 1e12;
  cluster.links = {{{"node", 4, 1, 0, 100, 4}, {"network", 5, 0, 0, network_gbs}}, 1000};
  return cluster;
}

std::vector<double> times_of(const std::vector<FoundLayout>& layouts) {
  std::vector<double> times;
  for (const FoundLayout& each : layouts) times.push_back(each.cost.seconds);
  return times;
}

int axes_of(const TrainingOptions& layout) {
  const MeshShape& mesh = layout.mesh;
  return (mesh[Axis::tensor] > 1) + (mesh[Axis::pipeline] > 1) + (mesh[Axis::ring] > 1) + (mesh[Axis::ulysses] > 1) +
         layout.divides_rows;
}

// The fastest first.
std::vector<double> sorted(std::vector<double> times) {
  std::ranges::sort(times);
  return times;
}

// Every layout's cost, without bounds.
std::vector<FoundLayout> exhaustive(const LayoutSpace& space, const TrainingCluster& cluster) {
  LayoutCosts costs(space.model, cluster, space.ranks);
  std::vector<FoundLayout> all;
  for (const TrainingOptions& layout : all_layouts(space, costs)) {
    FoundLayout found{layout, costs.cost(layout)};
    EXPECT_LE(costs.least_seconds(layout), found.cost.seconds) << to_string(layout);
    if (found.cost.memory.total() <= space.memory_bytes) all.push_back(std::move(found));
  }
  std::ranges::stable_sort(all, {}, [](const FoundLayout& each) { return each.cost.seconds; });
  return all;
}

// The fastest of each number of tensor-parallel ranks and stages, but for one of these.
std::vector<double> fastest_of_each(const std::vector<FoundLayout>& all, const TrainingOptions& without) {
  std::map<std::pair<int, int>, double> fastest;
  const auto division = [](const TrainingOptions& layout) {
    return std::pair(layout.mesh[Axis::tensor], layout.mesh[Axis::pipeline]);
  };
  for (const FoundLayout& each : all) {
    const auto [known, is_new] = fastest.try_emplace(division(each.layout), each.cost.seconds);
    known->second = std::min(known->second, each.cost.seconds);
  }
  fastest.erase(division(without));
  std::vector<double> times;
  for (const auto& [key, seconds] : fastest) times.push_back(seconds);
  return sorted(times);
}

TEST(LayoutSearch, FindsTheBestOfEachDivision) {
  const LayoutSpace space = small_space();
  for (const double network_gbs : {100.0, 1.0}) {
    const TrainingCluster cluster = nodes_of_four(network_gbs);
    const std::vector<FoundLayout> all = exhaustive(space, cluster);
    for (const std::size_t most : {std::size_t{1}, std::size_t{3}, std::size_t{100}}) {
      const LayoutSearch search = search_layouts(space, cluster, most);
      EXPECT_EQ(search.tried, static_cast<std::int64_t>(all.size()));
      EXPECT_LE(search.best.front().cost.seconds, all.front().cost.seconds * 1.02);
      std::vector<double> others = fastest_of_each(all, search.best.front().layout);
      ASSERT_GT(others.size(), 3U);
      others.resize(std::min(others.size(), most - 1));
      const std::vector<double> times = times_of({search.best.begin() + 1, search.best.end()});
      EXPECT_EQ(times, others);
      if (most > 3) {
        EXPECT_LT(times.size(), all.size() / 10) << "the control: of all there are many more";
      }
    }
  }
}

// With m microbatches in two stages, 1f1b waits 1/m of a step longer than schedules that split backward.
TEST(LayoutSearch, TakesTheSimplestOfThoseThatAreNearlyTheFastest) {
  LayoutSpace space = small_space();
  space.ranks = 2;
  space.tensor = 1;
  space.pipeline = 2;
  space.micro_batch = 1;
  for (const auto& [microbatches, schedule] : {std::pair{128, "1f1b"}, std::pair{8, "zb-"}}) {
    space.global_batch = microbatches;
    const std::vector<FoundLayout> all = exhaustive(space, nodes_of_four(100));
    EXPECT_THAT(all.front().layout.stages.schedule_name, testing::StartsWith("zb-"));
    for (const std::size_t most : {std::size_t{1}, std::size_t{5}}) {
      const std::vector<FoundLayout> best = search_layouts(space, nodes_of_four(100), most).best;
      ASSERT_EQ(best.size(), 1U);  // of one tensor-parallel rank and two stages
      EXPECT_THAT(best.front().layout.stages.schedule_name, testing::StartsWith(schedule)) << microbatches;
      EXPECT_LE(best.front().cost.seconds, all.front().cost.seconds * 1.02);
    }
  }
  // An axis more must be worth it, too.
  space.pipeline = space.tensor = std::nullopt;
  const std::vector<FoundLayout> all = exhaustive(space, nodes_of_four(1e6));
  const FoundLayout taken = search_layouts(space, nodes_of_four(1e6), 1).best.front();
  for (const FoundLayout& each : all) {
    if (each.cost.seconds > all.front().cost.seconds * 1.02) break;
    EXPECT_GE(axes_of(each.layout), axes_of(taken.layout));
  }
}

// A microbatch of one long sequence on two ranks of 80% of the memory that it needs; the model is small.
TEST(LayoutSearch, DividesSequencesThatFitNoOtherWay) {
  LayoutSpace space = small_space();
  space.model.sequence = std::int64_t{1} << 16;
  space.ranks = 2;
  space.global_batch = 2;
  space.tensor = 1;
  space.pipeline = 1;
  space.recompute = Recompute::full;
  const TrainingCluster cluster = nodes_of_four(100);
  space.ring = space.ulysses = 1;
  const std::int64_t whole = search_layouts(space, cluster, 1).best.front().cost.memory.total();
  space.memory_bytes = whole * 4 / 5;
  EXPECT_TRUE(search_layouts(space, cluster, 1).best.empty());
  space.ring = space.ulysses = std::nullopt;
  const LayoutSearch divided = search_layouts(space, cluster, 1);
  ASSERT_FALSE(divided.best.empty());
  EXPECT_EQ(divided.best.front().layout.mesh[Axis::data], 1);
  space.model.sequence = 2047;  // of which no rank would keep 1024 tokens
  for (const TrainingOptions& layout : all_layouts(space, LayoutCosts(space.model, cluster, space.ranks))) {
    EXPECT_EQ(layout.mesh[Axis::ring] * layout.mesh[Axis::ulysses], 1);
  }
}

TEST(LayoutSearch, OnSlowLinksCommunicatesLessBetweenNodes) {
  LayoutSpace space = small_space();
  const FoundLayout fast = search_layouts(space, nodes_of_four(1e6), 1).best.front();
  const FoundLayout slow = search_layouts(space, nodes_of_four(0.1), 1).best.front();
  EXPECT_NE(to_string(fast.layout), to_string(slow.layout));
  EXPECT_LT(fast.cost.seconds, slow.cost.seconds);
}

TEST(LayoutSearch, LeavesOutWhatNeedsTooMuchMemory) {
  LayoutSpace space = small_space();
  const TrainingCluster cluster = nodes_of_four(10);
  const std::vector<FoundLayout> all = exhaustive(space, cluster);
  std::vector<std::int64_t> memory;
  for (const FoundLayout& each : all) memory.push_back(each.cost.memory.total());
  std::ranges::sort(memory);
  space.memory_bytes = memory[memory.size() / 4];
  const LayoutSearch search = search_layouts(space, cluster, all.size());
  EXPECT_EQ(times_of({search.best.begin() + 1, search.best.end()}),
            fastest_of_each(exhaustive(space, cluster), search.best.front().layout));
  EXPECT_GT(search.without_memory, 0);
  EXPECT_LT(search.without_memory, search.tried * 3 / 4);
  for (const FoundLayout& each : search.best) EXPECT_LE(each.cost.memory.total(), space.memory_bytes);
  space.memory_bytes = memory.front() - 1;
  const LayoutSearch none = search_layouts(space, cluster, 10);
  EXPECT_TRUE(none.best.empty());
  EXPECT_EQ(none.least_memory, memory.front());
}

TEST(LayoutSearch, TakesWhatIsFixed) {
  LayoutSpace space = small_space();
  space.tensor = 2;
  space.pipeline = 2;
  space.schedule = "interleaved";
  space.virtual_stages = 4;
  space.zero = ZeroStage::gradients;
  space.divides_rows = true;
  space.recompute = Recompute::selective;
  space.micro_batch = 2;
  const LayoutSearch search = search_layouts(space, nodes_of_four(10), 10);
  ASSERT_EQ(search.best.size(), 1U);
  EXPECT_EQ(to_string(search.best.front().layout),
            "tp 2 (sp) x pp 2 x dp 2, micro-batch 2, interleaved of 4, ZeRO 2, recomputes selective");
}

// Only where one is asked for by name, and only layouts that can run it.
TEST(LayoutSearch, TakesSchedulesWithoutAFlushByName) {
  LayoutSpace space = small_space();
  const TrainingCluster cluster = nodes_of_four(10);
  for (const TrainingOptions& layout : all_layouts(space, LayoutCosts(space.model, cluster, space.ranks))) {
    ASSERT_FALSE(is_window(layout.check())) << to_string(layout);
  }
  space.pipeline = 2;
  space.schedule = "2bw";
  const LayoutSearch search = search_layouts(space, cluster, 10);
  ASSERT_FALSE(search.best.empty());
  for (const FoundLayout& found : search.best) {
    EXPECT_TRUE(is_window(found.layout.check()));
    EXPECT_THAT(to_string(found.layout), testing::HasSubstr(", 2bw, ZeRO "));
    EXPECT_LT(found.cost.bubble, 0.01);
  }
  space.zero = ZeroStage::gradients;
  EXPECT_THAT(refusal_text(space, search_layouts(space, cluster, 10)), testing::HasSubstr("ZeRO stage 2 divides"));
}

TEST(LayoutSearch, TakesWhatIsNotTriedByItself) {
  LayoutSpace space = small_space();
  const TrainingCluster cluster = nodes_of_four(10);
  const auto all = [&] { return all_layouts(space, LayoutCosts(space.model, cluster, space.ranks)); };
  for (const TrainingOptions& layout : all()) {
    ASSERT_FALSE(layout.keeps_gathered || layout.recompute.partition) << "the control: nothing is set";
  }
  space.keeps_gathered = true;
  ASSERT_FALSE(all().empty());
  for (const TrainingOptions& layout : all()) {
    EXPECT_TRUE(layout.keeps_gathered && layout.divides_rows);
    layout.check();
  }
  space.keeps_gathered = false;
  space.partitions_activations = true;
  ASSERT_FALSE(all().empty());
  for (const TrainingOptions& layout : all()) {
    EXPECT_TRUE(layout.recompute.partition && layout.recompute.level == Recompute::full && !layout.divides_rows);
    layout.check();
  }
  space.partitions_activations = false;
  space.activations_directory = "/tmp";
  ASSERT_FALSE(all().empty());
  for (const TrainingOptions& layout : all()) {
    EXPECT_TRUE(layout.recompute.directory == "/tmp" && layout.recompute.level == Recompute::full);
    layout.check();
  }
  space.activations_directory.clear();
  space.ring = 2;
  space.sequence_layout = SequenceLayout::striped;
  ASSERT_FALSE(all().empty());
  for (const TrainingOptions& layout : all()) EXPECT_EQ(layout.sequence_layout, SequenceLayout::striped);
}

TEST(LayoutSearch, RefusesWhatSettingsExclude) {
  LayoutSpace space = small_space();
  space.tensor = 1;
  space.divides_rows = true;
  const auto refusal = [&] { return search_layouts(space, nodes_of_four(10), 10).refused.front().sentence; };
  EXPECT_THAT(refusal(), testing::StartsWith("Sequence parallelism divides rows"));
  space.tensor = 2;
  space.divides_rows = false;
  space.keeps_gathered = true;
  EXPECT_THAT(refusal(), testing::StartsWith("Gathered rows can be kept only"));
}

TEST(LayoutSearch, CountsRefusals) {
  LayoutSpace space = small_space();
  space.tensor = 8;  // of 4 heads
  const LayoutSearch search = search_layouts(space, nodes_of_four(10), 10);
  EXPECT_EQ(search.tried, 0);
  ASSERT_EQ(search.refused.size(), 1U);
  EXPECT_EQ(search.refused.front().count, 1);
  EXPECT_THAT(search.refused.front().sentence,
              testing::AllOf(testing::HasSubstr("4 attention heads"), testing::HasSubstr("8 tensor")));
  EXPECT_EQ(refusal_text(space, search), search.refused.front().sentence);
  space.tensor = 16;  // of 8 ranks
  EXPECT_THAT(refusal_text(space, search_layouts(space, nodes_of_four(10), 10)), testing::HasSubstr("8 ranks"));
}

TEST(LayoutSearch, MostFrequentRefusalsComeFirst) {
  LayoutSpace space = small_space();
  space.tensor = 1;
  space.divides_rows = true;
  const LayoutSearch search = search_layouts(space, nodes_of_four(10), 10);
  ASSERT_GT(search.refused.size(), 1U);
  EXPECT_TRUE(std::ranges::is_sorted(search.refused, std::greater(), &LayoutSearch::Refusal::count));
  const std::string text = refusal_text(space, search);
  EXPECT_THAT(text, testing::StartsWith(std::to_string(search.refused[0].count) + " "));
  EXPECT_EQ(std::ranges::count(text, '\n'), std::min<std::ptrdiff_t>(std::ssize(search.refused), 3) - 1);
}

}  // namespace
}  // namespace stretto
