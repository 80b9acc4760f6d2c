// Pipeline schedules: every generator is proved, the formulas of the papers hold, and whatever is changed in a schedule is
// refused.
#include "stretto/overlap/schedule.hpp"

#include <algorithm>
#include <random>

#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

// The second and third have W < F < B, as transformers have.
constexpr std::array times{ScheduleTimes{1, 1, 1}, ScheduleTimes{3, 4, 2}, ScheduleTimes{2, 3, 1}};

double waiting(ScheduleKind kind, int stages, int microbatches, int chunks, const ScheduleTimes& of) {
  const ScheduleSimulation result = simulate(make_schedule(kind, stages, microbatches, chunks), of);
  EXPECT_DOUBLE_EQ(result.bubble, result.step / result.ideal - 1);
  return result.step - result.ideal;
}

TEST(Schedules, EveryGeneratorIsProved) {
  int proved = 0;
  for (const ScheduleKind kind : all_schedule_kinds()) {
    for (int stages = 1; stages <= 9; ++stages) {
      for (int microbatches = 1; microbatches <= 48; ++microbatches) {
        for (int chunks = 1; chunks <= 4; ++chunks) {
          if (!allows(kind, stages, microbatches, chunks)) continue;
          ASSERT_NO_THROW(check(make_schedule(kind, stages, microbatches, chunks)))
              << name(kind) << " " << stages << " " << microbatches << " " << chunks;
          ++proved;
        }
      }
    }
  }
  EXPECT_GT(proved, 2000);
}

TEST(Schedules, BubblesAreThoseOfThePapers) {
  for (const ScheduleTimes& of : times) {
    const double f = of.forward, b = of.backward_input, w = of.backward_weight;
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 24; ++m) {
        SCOPED_TRACE(testing::Message() << p << " stages, " << m << " microbatches");
        EXPECT_NEAR(waiting(ScheduleKind::gpipe, p, m, 1, of), (p - 1) * (f + b + w), 1e-9);
        EXPECT_NEAR(waiting(ScheduleKind::one_forward_one_backward, p, m, 1, of), (p - 1) * (f + b + w), 1e-9);
        for (int v = 1; v <= 4 && m % p == 0; ++v) {
          EXPECT_NEAR(waiting(ScheduleKind::interleaved, p, m, v, of), (p - 1) * (f + b + w), 1e-9);
        }
        if (m >= p) {
          EXPECT_NEAR(waiting(ScheduleKind::zb_h1, p, m, 1, of), (p - 1) * (f + b - w), 1e-9);
        }
        if (m >= 2 * p - 1) {
          EXPECT_NEAR(waiting(ScheduleKind::zb_h2, p, m, 1, of), (p - 1) * (f + b - 2 * w), 1e-9);
        }
      }
    }
  }
}

TEST(Schedules, ZbVHasNoBubbleInTwoChunksTimesStages) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p - 1; m <= 24; ++m) {
      const ScheduleSimulation result = simulate(make_schedule(ScheduleKind::zb_v, p, m, 2));
      EXPECT_DOUBLE_EQ(result.step, result.ideal) << p << " stages, " << m << " microbatches";
      EXPECT_DOUBLE_EQ(result.last_end, result.ideal + p - 1);
      EXPECT_THAT(result.unfinished, testing::Each(testing::Le(2 * p)));
    }
  }
}

TEST(Schedules, FourStagesAndFourMicrobatchesUseFourSevenths) {
  const ScheduleSimulation result = simulate(make_schedule(ScheduleKind::gpipe, 4, 4));
  EXPECT_DOUBLE_EQ(result.bubble, 3.0 / 4);
  EXPECT_NEAR(result.ideal / result.step, 0.57, 0.005);
  EXPECT_DOUBLE_EQ(simulate(make_schedule(ScheduleKind::interleaved, 4, 8, 2)).bubble, 3.0 / (2 * 8));
}

TEST(Schedules, MicrobatchesUnderWay) {
  using testing::Each;
  using testing::ElementsAre;
  EXPECT_THAT(simulate(make_schedule(ScheduleKind::gpipe, 4, 9)).under_way, Each(9));
  EXPECT_THAT(simulate(make_schedule(ScheduleKind::one_forward_one_backward, 4, 9)).under_way, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(simulate(make_schedule(ScheduleKind::one_forward_one_backward, 4, 2)).under_way, ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(simulate(make_schedule(ScheduleKind::eager_one_forward_one_backward, 4, 9)).under_way,
              ElementsAre(7, 5, 3, 1));
  EXPECT_THAT(simulate(make_schedule(ScheduleKind::interleaved, 4, 8, 2)).under_way, ElementsAre(11, 9, 7, 5));
  const ScheduleSimulation h1 = simulate(make_schedule(ScheduleKind::zb_h1, 4, 9));
  EXPECT_THAT(h1.under_way, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(h1.unfinished, ElementsAre(4, 4, 4, 4));
  const ScheduleSimulation h2 = simulate(make_schedule(ScheduleKind::zb_h2, 4, 12));
  EXPECT_THAT(h2.under_way, ElementsAre(7, 5, 3, 1));
  EXPECT_THAT(h2.unfinished, ElementsAre(7, 7, 7, 7));
}

TEST(Schedules, AMessageTakesItsTime) {
  const Schedule two = make_schedule(ScheduleKind::gpipe, 2, 1);
  EXPECT_DOUBLE_EQ(simulate(two, {1, 2, 3, 0.5}).step, 2 * (1 + 2 + 3) + 2 * 0.5);
}

// Messages between the two stages delay every microbatch of 1F1B, but only the first and the last where one more is under
// way.
TEST(Schedules, EagerForwardsHideMessages) {
  const ScheduleTimes of_both{1, 1, 1, 0.3};
  const double without = simulate(make_schedule(ScheduleKind::one_forward_one_backward, 2, 8)).step;
  EXPECT_NEAR(simulate(make_schedule(ScheduleKind::one_forward_one_backward, 2, 8), of_both).step, without + 9 * 0.3, 1e-9);
  EXPECT_NEAR(simulate(make_schedule(ScheduleKind::eager_one_forward_one_backward, 2, 8), of_both).step, without + 2 * 0.3,
              1e-9);
  EXPECT_EQ(simulate(make_schedule(ScheduleKind::eager_one_forward_one_backward, 2, 8)).step, without);
}

TEST(Schedules, PartsOfDifferentTimes) {
  // The second stage computes three times as long as the first, which only waits for it.
  const Schedule two = make_schedule(ScheduleKind::one_forward_one_backward, 2, 4);
  const ScheduleSimulation result = simulate(two, std::vector<ScheduleTimes>{{1, 1, 1, 0}, {3, 3, 3, 0}});
  EXPECT_DOUBLE_EQ(result.ideal, 4 * 9);
  EXPECT_DOUBLE_EQ(result.step, 1 + 4 * 9 + 2);
  expect_refusal([&] { simulate(two, std::vector<ScheduleTimes>(3)); }, "3 parts");
}

TEST(Schedules, NamesAndFiles) {
  EXPECT_EQ(schedule_names(), "gpipe, 1f1b, 1f1b-eager, interleaved, zb-h1, zb-h2, zb-v");
  for (const ScheduleKind kind : all_schedule_kinds()) {
    EXPECT_EQ(to_text(named_schedule(name(kind), 2, 4)), to_text(make_schedule(kind, 2, 4, usual_chunks(kind))));
  }
  EXPECT_EQ(named_schedule("interleaved", 2, 4).chunks, 2);
  EXPECT_EQ(to_text(named_schedule("interleaved", 2, 4, 3)), to_text(make_schedule(ScheduleKind::interleaved, 2, 4, 3)));
  const TemporaryDirectory directory;
  const std::string path = directory.write("schedule", to_text(make_schedule(ScheduleKind::zb_h1, 2, 3)));
  EXPECT_EQ(named_schedule(path, 2, 3).name, "zb-h1");
  EXPECT_EQ(named_schedule(path, 0, 0, 0).microbatches, 3);
  expect_refusal([&] { named_schedule(path, 2, 4); }, "3 microbatches");
  expect_refusal([&] { named_schedule("2f2b", 2, 4); }, "'2f2b'");
  directory.write("schedule", "garbage");
  expect_refusal([&] { named_schedule(path, 2, 3); }, path + ": Line 1");
}

TEST(Schedules, NumbersThatCannotBe) {
  expect_refusal([] { make_schedule(ScheduleKind::interleaved, 4, 6, 2); }, "4 stages");
  expect_refusal([] { make_schedule(ScheduleKind::gpipe, 4, 8, 2); }, "not 2");
  expect_refusal([] { make_schedule(ScheduleKind::zb_v, 4, 8); }, "not 1");
  expect_refusal([] { make_schedule(ScheduleKind::gpipe, 0, 8); }, "0 stages");
  expect_refusal([] { make_schedule(ScheduleKind::gpipe, 2, 0); }, "0 microbatches");
  expect_refusal([] { make_schedule(ScheduleKind::gpipe, 4096, 1 << 20); }, "2^22");
  expect_refusal([] { schedule_kind_from_name("2f2b"); }, "'2f2b'");
  expect_refusal([] { simulate(make_schedule(ScheduleKind::gpipe, 2, 2), {1, -1, 1}); }, "-1");
}

// ---- schedules that are wrong

// A stage, a group of it, and an action of that.
struct Place {
  int stage;
  std::size_t group, action;
};

std::vector<Place> places(const Schedule& schedule) {
  std::vector<Place> all;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (std::size_t group = 0; group < schedule.lists[stage].size(); ++group) {
      for (std::size_t i = 0; i < schedule.lists[stage][group].size(); ++i) all.push_back({stage, group, i});
    }
  }
  return all;
}

std::vector<Schedule> some_schedules() {
  return {make_schedule(ScheduleKind::gpipe, 3, 4),          make_schedule(ScheduleKind::one_forward_one_backward, 4, 6),
          make_schedule(ScheduleKind::interleaved, 2, 4, 3), make_schedule(ScheduleKind::zb_h1, 3, 5),
          make_schedule(ScheduleKind::zb_h2, 3, 7),          make_schedule(ScheduleKind::zb_v, 3, 6, 2)};
}

void expect_wrong(const Schedule& schedule, const std::string& what) {
  SCOPED_TRACE(schedule.name + " " + what);
  EXPECT_THAT(sentence_of(ErrorCode::invalid_argument, [&] { check(schedule); }),
              testing::MatchesRegex("Stages? [^\n]*(for|back)ward[^\n]*\\."));
}

TEST(WrongSchedules, AnyActionDropped) {
  for (const Schedule& right : some_schedules()) {
    for (const Place& at : places(right)) {
      Schedule wrong = right;
      ActionGroup& group = wrong.lists[at.stage][at.group];
      const std::string what = to_string(group[at.action]) + " dropped";
      group.erase(group.begin() + static_cast<std::ptrdiff_t>(at.action));
      if (group.empty()) wrong.lists[at.stage].erase(wrong.lists[at.stage].begin() + static_cast<std::ptrdiff_t>(at.group));
      expect_wrong(wrong, what);
    }
  }
}

TEST(WrongSchedules, AnyMicrobatchRenamed) {
  for (const Schedule& right : some_schedules()) {
    for (const Place& at : places(right)) {
      Schedule wrong = right;
      Action& action = wrong.lists[at.stage][at.group][at.action];
      action.microbatch = (action.microbatch + 1) % (right.microbatches + 1);
      expect_wrong(wrong, to_string(action) + " renamed");
    }
  }
}

TEST(WrongSchedules, AnyMessageAtTheWrongStage) {
  for (const Schedule& right : some_schedules()) {
    for (const Place& at : places(right)) {
      const Action action = right.lists[at.stage][at.group][at.action];
      if (!is_message(action.kind)) continue;
      Schedule wrong = right;
      ActionGroup& group = wrong.lists[at.stage][at.group];
      group.erase(group.begin() + static_cast<std::ptrdiff_t>(at.action));
      if (group.empty()) wrong.lists[at.stage].erase(wrong.lists[at.stage].begin() + static_cast<std::ptrdiff_t>(at.group));
      auto& other = wrong.lists[(at.stage + 1) % right.stages];
      other.insert(other.begin() + static_cast<std::ptrdiff_t>(std::min(at.group, other.size())), ActionGroup{action});
      expect_wrong(wrong, to_string(action) + " at the wrong stage");
    }
  }
}

TEST(WrongSchedules, TwoComputationsSwapped) {
  // Each pair depends on its first, so the second may not come before it.
  for (const Schedule& right : some_schedules()) {
    for (int stage = 0; stage < right.stages; ++stage) {
      for (int i = 0; i < right.microbatches; ++i) {
        Schedule wrong = right;
        const auto place = [&](auto fits) {
          return std::find_if(wrong.lists[stage].begin(), wrong.lists[stage].end(), [&](const ActionGroup& group) {
            return group[0].microbatch == i && group[0].chunk == 0 && fits(group[0].kind);
          });
        };
        const auto forward = place([](ActionKind kind) { return kind == ActionKind::forward; });
        const auto backward =
            place([](ActionKind kind) { return kind == ActionKind::backward || kind == ActionKind::backward_input; });
        const auto weights = place([](ActionKind kind) { return kind == ActionKind::backward_weight; });
        if (i % 2 == 0 || weights == wrong.lists[stage].end()) {
          std::iter_swap(forward, backward);
        } else {
          std::iter_swap(backward, weights);
        }
        expect_wrong(wrong, "two swapped");
      }
    }
  }
}

TEST(WrongSchedules, SentencesNameStageAndAction) {
  const Schedule right = make_schedule(ScheduleKind::one_forward_one_backward, 2, 2);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = to_text(right);
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << "\n" << text;
    if (at != std::string::npos) text.replace(at, from.size(), to);
    return schedule_from_text(text);
  };
  expect_refusal([&] { check(changed("send_forward 0 0\n", "receive_backward 0 0\nsend_forward 0 0\n")); },
                 "Stages would wait for each other for ever: stage 0 at receive_backward 0 0 for stage 1, stage 1 at "
                 "receive_forward 0 0 for stage 0.");
  expect_refusal([&] { check(changed("send_backward 1 0\n", "")); },
                 "Stage 0 would wait for ever at receive_backward 1 0: stage 1 ends without the other side of it.");
  expect_refusal([&] { check(changed("receive_forward 0 0", "receive_forward 1 0")); },
                 "Stage 1 has receive_forward 1 0 where stage 0 has send_forward 0 0, which is another message.");
  expect_refusal([&] { check(changed("forward 0 0\n", "")); }, "Stage 0 has send_forward 0 0 before it has computed that.");
  expect_refusal([&] { check(changed("\nbackward 1 0\n", "\nbackward_input 1 0\n")); },
                 "Stage 0 never computes backward_weight 1 0.");
  expect_refusal([&] { check(changed("\nbackward 1 0\n", "\nbackward_weight 1 0\nbackward_input 1 0\n")); },
                 "Stage 0 computes backward_weight 1 0 before its backward_input.");
  expect_refusal([&] { check(changed("\nbackward 1 0\n", "\nbackward 1 0\nbackward_weight 1 0\n")); },
                 "Stage 0 computes backward_weight 1 0 a second time.");
  expect_refusal([&] { check(changed("\nbackward 1 0\n", "\nbackward 1 0\nsend_backward 1 0\n")); },
                 "Stage 0 has send_backward 1 0, but no other stage needs it.");
  expect_refusal([&] { check(changed("forward 0 0\n", "forward 0 0, forward 1 0\n")); }, "only messages go together");
  expect_refusal([&] { check(changed("forward 0 0\n", "forward 9 0\n")); },
                 "Stage 0 has forward 9 0, but the microbatches are 0 to 1 and its chunks 0 to 0.");
}

// ---- text

TEST(ScheduleText, RoundTrip) {
  for (const Schedule& each : some_schedules()) {
    const Schedule read = schedule_from_text(to_text(each));
    EXPECT_EQ(read.name, each.name);
    EXPECT_EQ(to_text(read), to_text(each));
    EXPECT_EQ(read.lists, each.lists);
    EXPECT_NO_THROW(check(read));
  }
}

TEST(ScheduleText, CommentsAndBlanks) {
  const Schedule read = schedule_from_text(
      "# by hand\n\n schedule mine # a name\nstages 1\nmicrobatches 1\nchunks 2\nplacement v_shaped\nstage 0\n"
      "forward 0 0\r\n  forward   0 1\n\tbackward 0 1\nbackward 0 0 # the end");
  EXPECT_EQ(read.placement, ChunkPlacement::v_shaped);
  EXPECT_NO_THROW(check(read));
}

TEST(ScheduleText, Garbage) {
  const std::string head = "schedule s\nstages 2\nmicrobatches 1\nchunks 1\nplacement round_robin\n";
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "ends where 'schedule' is expected"},
           {"%PDF-1.7", "Line 1 of the schedule cannot be read: 'schedule' and its value are expected"},
           {"schedule <s>", "a name has letters"},
           {"schedule s\nstages many", "Line 2 of the schedule cannot be read: 'many' is no number"},
           {"schedule s\nstages 99999999999999", "is no number"},
           {"schedule s\nstages -1\nmicrobatches 1\nchunks 1\nplacement round_robin", "pipeline of -1 stages"},
           {"schedule s\nstages 2\nmicrobatches 1\nchunks 1\nplacement random", "round_robin or v_shaped"},
           {"schedule s\nstages 2\nmicrobatches 1\nchunks 1\nplacement v_shaped", "has 2 chunks a stage, not 1"},
           {head, "has 2 stages, but lists 0"},
           {head + "forward 0 0", "'stage 0' is expected"},
           {head + "stage 1", "0 to 1, in order"},
           {head + "stage 0\n\v\n\f\nforward 0 0", "has 2 stages, but lists 1"},
           {head + "stage 0\nforward 0", "a kind, a microbatch and a chunk"},
           {head + "stage 0\nforwards 0 0", "'forwards' is no kind of action"},
           {head + "stage 0\nforward 0 x", "'x' is no number"},
           {head + "stage 0\nforward 0 0,", "a kind, a microbatch and a chunk"}}) {
    expect_refusal([text = text] { schedule_from_text(text); }, part);
  }
  // Whatever is done to a file, it is read or refused.
  std::mt19937 random(1);
  const std::string right = to_text(make_schedule(ScheduleKind::zb_h1, 2, 3));
  for (int i = 0; i < 2000; ++i) {
    std::string text = right;
    for (int k = 0; k < 3; ++k) text[random() % text.size()] = static_cast<char>(random() % 256);
    try {
      check(schedule_from_text(text));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    }
  }
}

}  // namespace
}  // namespace stretto
