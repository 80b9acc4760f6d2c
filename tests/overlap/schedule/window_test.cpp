// Windows of steps that repeat: PipeDream and 2BW are proved, their formulas hold, and whatever is changed in them is
// refused.
#include "overlap/schedule/window.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "overlap/schedule/actions.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr int most_stages = 6;

std::vector<Schedule> some_windows() {
  std::vector<Schedule> all;
  for (const WindowKind& kind : all_window_kinds()) {
    for (const auto& [stages, microbatches] : {std::pair{1, 2}, {3, 3}, {4, 6}})
      all.push_back(kind.make(stages, microbatches));
  }
  return all;
}

TEST(ScheduleWindows, VersionsAndDelaysAreThoseOfThePapers) {
  for (int p = 1; p <= most_stages; ++p) {
    for (int n = p; n <= p + 7; ++n) {
      SCOPED_TRACE(testing::Message() << p << " stages, " << n << " microbatches");
      const ScheduleSimulation pipedream = simulate(pipedream_schedule(p, n));
      const ScheduleSimulation vertical = simulate(vertical_pipedream_schedule(p, n));
      const ScheduleSimulation two_buffered = simulate(two_buffered_schedule(p, n));
      const ScheduleSimulation joint = simulate(joint_two_buffered_schedule(p, n));
      const ScheduleSimulation pipemare = simulate(pipemare_schedule(p, n));
      for (int s = 0; s < p; ++s) {
        EXPECT_EQ(pipedream.versions[s], p - s);
        EXPECT_EQ(pipedream.delay[s], p - 1 - s);
        EXPECT_EQ(vertical.versions[s], p);
        EXPECT_EQ(vertical.delay[s], p - 1);
        EXPECT_EQ(vertical.under_way[s], p - s);
        EXPECT_EQ(two_buffered.versions[s], p > 1 ? 2 : 1);
        EXPECT_EQ(two_buffered.delay[s], p > 1 ? 1 : 0);
        EXPECT_EQ(joint.versions[s], s + 1 < p ? 2 : 1) << "the last stage updates when nothing reads what it replaces";
        EXPECT_EQ(joint.delay[s], p > 1 ? 1 : 0);
        EXPECT_EQ(joint.under_way[s], p - s);
        EXPECT_EQ(pipemare.versions[s], 1);
        EXPECT_EQ(pipemare.delay[s], p - 1 - s);
        EXPECT_EQ(pipedream.under_way[s], p - s) << "as 1F1B";
        EXPECT_EQ(pipemare.under_way[s], p - s);
        EXPECT_EQ(two_buffered.under_way[s], p - s);
      }
    }
  }
  for (const ScheduleKind kind : all_schedule_kinds()) {
    const ScheduleSimulation flushed = simulate(make_schedule(kind, 3, 6, usual_chunks(kind)));
    EXPECT_THAT(flushed.versions, testing::Each(1)) << name(kind);
    EXPECT_THAT(flushed.delay, testing::Each(0)) << name(kind);
  }
}

TEST(ScheduleWindows, HaveTheMeanDelaysOfTheirStages) {
  constexpr int p = 4, n = 6;
  for (int s = 0; s < p; ++s) {
    const auto expect = [&](const Schedule& window, double forward, double backward) {
      EXPECT_EQ(mean_delay(window, s).forward, forward) << window.name << ", stage " << s;
      EXPECT_EQ(mean_delay(window, s).backward, backward) << window.name << ", stage " << s;
    };
    expect(pipedream_schedule(p, n), p - 1 - s, p - 1 - s);
    expect(vertical_pipedream_schedule(p, n), p - 1, p - 1);
    expect(two_buffered_schedule(p, n), 1, 1);
    expect(joint_two_buffered_schedule(p, n), 1, 1);
    expect(pipemare_schedule(p, n), p - 1 - s, 0);
    expect(make_schedule(ScheduleKind::one_forward_one_backward, p, n), 0, 0);
  }
  EXPECT_THAT(sentence_of([] { mean_delay(pipemare_schedule(2, 2), 2); }), testing::HasSubstr("no stage 2"));
}

// Forwards and backwards of the paper's slots go side by side, so that 2 (p - 1 - s) + 1 microbatches lie between the two of
// one microbatch, and an update follows each 8.
Schedule window_of_the_paper(int p, int n) {
  Schedule window{"pipemare-paper", p, n, 1, ChunkPlacement::round_robin, {}, 1, false};
  for (int stage = 0; stage < p; ++stage) {
    const int between = 2 * (p - 1 - stage) + 1;
    std::vector<ActionGroup>& list = window.lists.emplace_back();
    for (int i = 0; i < n; ++i) {
      const int ends = (i - between + n) % n;
      list.push_back({{ActionKind::forward, i, 0, i < between ? -1 : 0}});
      list.push_back({{ActionKind::backward, ends}});
      if (ends == n - 1) list.push_back({{ActionKind::update, 0}});
    }
  }
  return window_with_messages(window);
}

TEST(ScheduleWindows, OfPipeMareInFilesHaveThePapersDelays) {
  const Schedule window = window_of_the_paper(4, 8);
  EXPECT_NO_THROW(check(schedule_from_text(to_text(window))));
  EXPECT_THAT(simulate(window).versions, testing::Each(1));
  for (int s = 0; s < 4; ++s) {
    EXPECT_EQ(mean_delay(window, s).forward, (2 * (3 - s) + 1) / 8.0);
    EXPECT_EQ(mean_delay(window, s).backward, 0);
  }
}

TEST(ScheduleWindows, NobodyWaitsButInTheBeginningAndAtTheEnd) {
  for (const ScheduleTimes& of : {ScheduleTimes{1, 1, 1}, ScheduleTimes{3, 4, 2}, ScheduleTimes{2, 3, 1}}) {
    for (int p = 1; p <= most_stages; ++p) {
      for (const int n : {p, p + 3}) {
        for (const WindowKind& kind : all_window_kinds()) {
          const Schedule window = kind.make(p, n);
          SCOPED_TRACE(testing::Message() << window.name << ", " << p << " stages, " << n << " microbatches");
          EXPECT_NEAR(simulate(window, of).bubble, 0, 1e-9);
          // Four repetitions; and four times five that end with an empty pipeline each.
          EXPECT_NEAR(simulate(window, of).last_end, (4 * n + p - 1) * of.all(), 1e-9);
          EXPECT_NEAR(simulate(repeated(window, 5), of).last_end, 4 * (5 * n + p - 1) * of.all(), 1e-9) << "the control";
        }
      }
    }
  }
}

TEST(ScheduleWindows, OneStepThatListsItsUpdateIsTheSameAsOneThatDoesNot) {
  for (const ScheduleKind kind : all_schedule_kinds()) {
    const Schedule plain = make_schedule(kind, 3, 6, usual_chunks(kind));
    Schedule listed = plain;
    for (auto& list : listed.lists) {
      for (int chunk = 0; chunk < listed.chunks; ++chunk) list.push_back({{ActionKind::update, 0, chunk}});
    }
    const ScheduleSimulation simulation = simulate(listed);
    EXPECT_THAT(simulation.versions, testing::Each(1)) << name(kind);
    EXPECT_THAT(simulation.delay, testing::Each(0));
    EXPECT_EQ(simulation.under_way, simulate(plain).under_way);
    listed.lists[1].pop_back();
    EXPECT_THAT(sentence_of([&] { check(listed); }), testing::HasSubstr("Stage 1 "));
  }
}

TEST(ScheduleWindows, HaveATextForm) {
  for (const Schedule& window : some_windows()) {
    const Schedule read = schedule_from_text(to_text(window));
    EXPECT_EQ(read.steps, window.steps);
    EXPECT_EQ(read.stashes, window.stashes);
    EXPECT_EQ(read.lists, window.lists);
    EXPECT_NO_THROW(check(read));
  }
  EXPECT_THAT(to_text(pipedream_schedule(2, 3)),
              testing::AllOf(testing::HasSubstr("steps 3\nstage 0\nforward 0 0 -1\n"), testing::HasSubstr("update 2 0\n")));
  EXPECT_THAT(to_text(make_schedule(ScheduleKind::gpipe, 2, 2)), testing::Not(testing::HasSubstr("steps")));
  const std::string head = "schedule s\nstages 1\nmicrobatches 1\nchunks 1\nplacement round_robin\n";
  for (const auto& [text, part] :
       std::vector<std::pair<std::string, std::string>>{{"steps 0\n", "window of 0 steps"},
                                                        {"steps\n", "'steps' and its value"},
                                                        {"steps 5000000\n", "more than 2^22"},
                                                        {"stash all\n", "'stash none' is all"},
                                                        {"stash\n", "'stash none' is all"},
                                                        {"stage 0\nupdate 0 0 1\n", "read no version"},
                                                        {"stage 0\nsum 0 0 1\n", "read no version"},
                                                        {"stage 0\nforward 0 0 1 1\n", "and the version"}}) {
    EXPECT_THAT(sentence_of([&] { schedule_from_text(head + text); }), testing::HasSubstr(part));
  }
}

TEST(ScheduleWindows, AreNamedAndNeedAsManyMicrobatchesAsStages) {
  EXPECT_EQ(to_text(named_schedule("pipedream", 3, 4)), to_text(pipedream_schedule(3, 4)));
  EXPECT_EQ(to_text(named_schedule("pipedream-vertical", 3, 4)), to_text(vertical_pipedream_schedule(3, 4)));
  EXPECT_EQ(to_text(named_schedule("2bw", 3, 4)), to_text(two_buffered_schedule(3, 4)));
  EXPECT_EQ(to_text(named_schedule("pipemare", 3, 4)), to_text(pipemare_schedule(3, 4)));
  EXPECT_EQ(to_text(named_schedule("2bw-joint", 3, 4)), to_text(joint_two_buffered_schedule(3, 4)));
  EXPECT_EQ(window_names(), "pipedream, pipedream-vertical, 2bw, 2bw-joint, pipemare");
  EXPECT_THAT(sentence_of([] { named_schedule("2bw-joint", 3, 2); }), testing::HasSubstr("2bw-joint needs at least"));
  EXPECT_THAT(sentence_of([] { named_schedule("pipedream", 3, 2); }), testing::HasSubstr("not 2 on 3"));
  EXPECT_THAT(sentence_of([] { named_schedule("2bw", 3, 2); }), testing::HasSubstr("not 2 on 3"));
  EXPECT_THAT(sentence_of([] { named_schedule("2bw", 3, 4, 2); }), testing::HasSubstr("1 chunk a stage, not 2"));
}

// ---- windows that are wrong

void expect_refused(const Schedule& wrong, const std::string& what) {
  EXPECT_THAT(sentence_of([&] { check(wrong); }), testing::HasSubstr("Stage")) << wrong.name << ": " << what;
}

template <class F>
void for_each_place(const Schedule& window, F f) {
  for (std::size_t stage = 0; stage < window.lists.size(); ++stage) {
    for (std::size_t group = 0; group < window.lists[stage].size(); ++group) {
      for (std::size_t i = 0; i < window.lists[stage][group].size(); ++i) f(stage, group, i);
    }
  }
}

TEST(WrongWindows, AnyOtherVersionRead) {
  for (const Schedule& right : some_windows()) {
    for_each_place(right, [&](std::size_t stage, std::size_t group, std::size_t i) {
      if (right.lists[stage][group][i].kind > ActionKind::backward) return;
      for (const int by : {-1, 1}) {
        Schedule wrong = right;
        Action& action = wrong.lists[stage][group][i];
        action.version += by;
        expect_refused(wrong, to_string(action));
      }
    });
  }
}

// A later version everywhere is not made yet; an older one is, but one more of them has to be kept.
TEST(WrongWindows, AllVersionsLaterOrOlder) {
  for (const Schedule& right : some_windows()) {
    const auto moved = [&](int by) {
      Schedule other = right;
      for_each_place(right, [&](std::size_t stage, std::size_t group, std::size_t i) {
        Action& action = other.lists[stage][group][i];
        if (action.kind <= ActionKind::backward) action.version += by;
      });
      return other;
    };
    if (right.name != "2bw") expect_refused(moved(1), "later versions");
    if (!right.stashes) {
      expect_refused(moved(-1), "older versions, which nobody keeps");
      continue;
    }
    const ScheduleSimulation older = simulate(moved(-1)), as_it_was = simulate(right);
    for (int stage = 0; stage < right.stages; ++stage) {
      EXPECT_EQ(older.versions[stage], as_it_was.versions[stage] + 1);
      EXPECT_EQ(older.delay[stage], as_it_was.delay[stage] + 1);
    }
  }
}

// What one of both promises, the other does not keep.
TEST(WrongWindows, ThatStashWhatTheyPromiseNotToOrDoNot) {
  for (Schedule wrong : some_windows()) {
    if (wrong.stages == 1) continue;  // nothing is old there
    wrong.stashes = !wrong.stashes;
    expect_refused(wrong, "the other stashing");
  }
}

TEST(WrongWindows, StashNothingWhereNothingIsUpdated) {
  Schedule flushes = make_schedule(ScheduleKind::one_forward_one_backward, 2, 2);
  EXPECT_NO_THROW(check(flushes));
  flushes.stashes = false;
  EXPECT_THAT(sentence_of([&] { check(schedule_from_text(to_text(flushes))); }),
              testing::HasSubstr("Schedule 1f1b says 'stash none' and is no window"));
}

TEST(WrongWindows, AnyActionDropped) {
  for (const Schedule& right : some_windows()) {
    for_each_place(right, [&](std::size_t stage, std::size_t group, std::size_t i) {
      Schedule wrong = right;
      ActionGroup& actions = wrong.lists[stage][group];
      // Its caller updates then, or it is 2bw.
      if (right.stages == 1 && right.steps == 1 && is_of_step(actions[i].kind)) return;
      const std::string what = to_string(actions[i]) + " dropped";
      actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(i));
      if (actions.empty()) wrong.lists[stage].erase(wrong.lists[stage].begin() + static_cast<std::ptrdiff_t>(group));
      expect_refused(wrong, what);
    });
  }
}

TEST(WrongWindows, AnyUpdateOrSumBeforeItsLastBackward) {
  for (const Schedule& right : some_windows()) {
    for_each_place(right, [&](std::size_t stage, std::size_t group, std::size_t i) {
      const Action update = right.lists[stage][group][i];
      const ActionKind first = updates_jointly(right) ? ActionKind::sum : ActionKind::update;
      if (update.kind != first) return;
      Schedule wrong = right;
      auto& list = wrong.lists[stage];
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(group));
      const int last = (update.microbatch + 1) * right.microbatches - 1;
      const auto backward = std::find_if(list.begin(), list.end(), [&](const ActionGroup& each) {
        return each[0].kind == ActionKind::backward && each[0].microbatch == last;
      });
      list.insert(backward, ActionGroup{update});
      expect_refused(wrong, to_string(update) + " too early");
    });
  }
}

// Where an update, or the sum of a joint one, comes behind the first backward of the next step.
TEST(WrongWindows, GradientsOfAStepAddedToThoseOfAnother) {
  for (const Schedule& right : some_windows()) {
    if (right.stages == 1 || right.steps > 1) continue;  // PipeDream's windows would lack the version as well
    for (std::size_t stage = 0; stage + 1 < right.lists.size(); ++stage) {  // the last one's comes at the window's end
      const ActionKind first = updates_jointly(right) ? ActionKind::sum : ActionKind::update;
      Schedule wrong = right;
      auto& list = wrong.lists[stage];
      const auto place_of = [&](const Action& action) {
        return std::find_if(list.begin(), list.end(), [&](const ActionGroup& each) {
          return each[0].kind == action.kind && each[0].microbatch == action.microbatch;
        });
      };
      const ActionGroup moved = *place_of({first, 0});
      list.erase(place_of({first, 0}));
      list.insert(place_of({ActionKind::backward, 0}) + 1, moved);
      EXPECT_THAT(sentence_of([&] { check(wrong); }), testing::HasSubstr("its gradients would be added to those of step"))
          << right.name << ", stage " << stage;
    }
  }
}

// Windows of stages that update together.
TEST(WrongWindows, OfJointUpdates) {
  const Schedule right = joint_two_buffered_schedule(3, 4);
  EXPECT_TRUE(updates_jointly(right));
  EXPECT_FALSE(updates_jointly(two_buffered_schedule(3, 4)));
  const auto with = [&](int stage, const std::function<void(std::vector<ActionGroup>&)>& change) {
    Schedule wrong = right;
    change(wrong.lists[static_cast<std::size_t>(stage)]);
    return sentence_of([&] { check(wrong); });
  };
  const auto is = [](ActionKind kind) { return [kind](const ActionGroup& group) { return group[0].kind == kind; }; };
  for (int stage = 0; stage < 3; ++stage) {
    for (const ActionKind kind : {ActionKind::sum, ActionKind::update}) {
      EXPECT_THAT(with(stage, [&](auto& list) { std::erase_if(list, is(kind)); }),
                  testing::HasSubstr("Stage " + std::to_string(stage)))
          << name(kind);
    }
  }
  EXPECT_EQ(with(2, [&](auto& list) { std::erase_if(list, is(ActionKind::sum)); }),
            "Stage 2 has update 0 0 before the sum of that step.");
  // Before the message that the first stage's sum needs.
  const std::string cycle = with(2, [&](auto& list) {
    std::erase_if(list, is(ActionKind::sum));
    std::erase_if(list, is(ActionKind::update));
    const ActionGroup last{{ActionKind::backward, 3, 0, -1}};
    const auto behind = std::find(list.begin(), list.end(), last) + 1;
    list.insert(list.insert(behind, ActionGroup{{ActionKind::sum, 0}}) + 1, ActionGroup{{ActionKind::update, 0}});
  });
  EXPECT_THAT(cycle, testing::AllOf(testing::HasSubstr("Stages would wait for each other for ever"),
                                    testing::HasSubstr("stage 2 at update 0 0 for stage 0")));
}

// Right behind its own sum, the last stage's update would wait for those of the others.
TEST(ScheduleWindows, OfJointUpdatesWaitWhereAnUpdateComesEarlier) {
  Schedule window = joint_two_buffered_schedule(3, 4);
  EXPECT_NEAR(simulate(window).bubble, 0, 1e-9);
  std::vector<ActionGroup>& list = window.lists.back();
  std::erase_if(list, [](const ActionGroup& group) { return group[0].kind == ActionKind::update; });
  list.push_back({{ActionKind::update, 0}});
  EXPECT_NO_THROW(check(window));
  EXPECT_GT(simulate(window).bubble, 0.1);
}

TEST(WrongWindows, ThatDoNotCloseAreRefused) {
  for (const Schedule& right : some_windows()) {
    Schedule longer = right;
    ++longer.steps;
    expect_refused(longer, "a step more than the lists have");
    for (int stage = 0; stage < right.stages; ++stage) {
      Schedule twice = right;
      twice.lists[stage].push_back({{ActionKind::update, right.steps - 1}});
      expect_refused(twice, "an update more on one stage");
    }
  }
  const Schedule none = schedule_from_text(
      "schedule s\nstages 1\nmicrobatches 1\nchunks 1\nplacement round_robin\nsteps 2\nstage 0\n"
      "forward 0 0\nbackward 0 0\nforward 1 0\nbackward 1 0\n");
  EXPECT_THAT(sentence_of([&] { check(none); }), testing::HasSubstr("window of 2 steps has no update"));
}

TEST(WrongWindows, SentencesNameStageActionAndVersion) {
  const auto changed = [](const Schedule& right, const std::string& from, const std::string& to) {
    std::string text = to_text(right);
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << "\n" << text;
    return schedule_from_text(text.replace(at, from.size(), to));
  };
  const auto refusal_of = [](const Schedule& wrong) { return sentence_of([&] { check(wrong); }); };
  const Schedule two = two_buffered_schedule(1, 2);
  EXPECT_EQ(refusal_of(changed(two, "backward 0 0", "backward 0 0 -1")),
            "Stage 0 computes backward 2 0 with another version of the weights than its forward, which read version 1.");
  EXPECT_EQ(refusal_of(changed(two, "backward 1 0\nupdate 0 0", "update 0 0\nbackward 1 0")),
            "Stage 0 has update 0 0 before the backward of microbatch 1.");
  EXPECT_EQ(refusal_of(changed(pipedream_schedule(1, 2), "update 1 0\n", "")),
            "Stage 0 computes forward 2 0 2 where that version of the weights is not made.");
  EXPECT_EQ(refusal_of(changed(pipemare_schedule(2, 2), "backward 0 0\nupdate 0 0", "backward 0 0 -1\nupdate 0 0")),
            "Stage 0 computes backward 2 0 1 with another version of the weights than the latest, 2, and nothing older is "
            "stashed.");
  EXPECT_TRUE(is_window(two));
  EXPECT_FALSE(is_window(make_schedule(ScheduleKind::zb_v, 2, 4, 2)));
}

}  // namespace
}  // namespace stretto
