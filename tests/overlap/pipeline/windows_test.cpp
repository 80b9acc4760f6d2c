// Windows that run: weights are those of a loop that computes one microbatch after the other with the versions of the
// papers.
#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <thread>

#include "stretto/overlap/pipeline.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/random_interruptions.hpp"

namespace stretto {
namespace {

constexpr std::int64_t prime = 10007;

std::int64_t input_of(std::int64_t microbatch) { return (31 * microbatch + 7) % prime; }
std::int64_t gradient_of_loss(std::int64_t output, std::int64_t microbatch) { return (output + 5 * microbatch) % prime; }

// One part of a model in whole numbers below a prime: y = w x, and every version of w is kept.
struct Part {
  std::vector<std::int64_t> versions;
  std::int64_t gradient = 0, aside = 0;

  explicit Part(int number) : versions{number + 2} {}
  std::int64_t forward(std::int64_t x, int version) const {
    return versions.at(static_cast<std::size_t>(version)) * x % prime;
  }
  std::int64_t backward(std::int64_t x, std::int64_t g, int version) {
    gradient = (gradient + x * g) % prime;
    return versions.at(static_cast<std::size_t>(version)) * g % prime;
  }
  void put_aside() { aside = std::exchange(gradient, 0); }
  // of_all: the sum of what all parts have put aside, if they update jointly.
  void update(std::int64_t of_all = 0) { versions.push_back((3 * versions.back() + aside + of_all) % prime); }
};

using VersionOf = std::function<int(int stage, int step)>;

// The versions of all parts, by one process.
std::vector<std::vector<std::int64_t>> loop(const Schedule& window, int windows, const VersionOf& version_of,
                                            const VersionOf& version_of_backward) {
  std::vector<Part> parts;
  for (int k = 0; k < window.parts(); ++k) parts.emplace_back(k);
  for (int step = 0; step < windows * window.steps; ++step) {
    for (int i = step * window.microbatches; i < (step + 1) * window.microbatches; ++i) {
      std::vector<std::int64_t> inputs = {input_of(i)};
      for (int k = 0; k < window.parts(); ++k) inputs.push_back(parts[k].forward(inputs.back(), version_of(k, step)));
      std::int64_t gradient = gradient_of_loss(inputs.back(), i);
      for (int k = window.parts(); k-- > 0;) gradient = parts[k].backward(inputs[k], gradient, version_of_backward(k, step));
    }
    std::int64_t of_all = 0;
    for (Part& part : parts) {
      part.put_aside();
      if (updates_jointly(window)) of_all += part.aside;
    }
    for (Part& part : parts) part.update(of_all);
  }
  std::vector<std::vector<std::int64_t>> result;
  for (const Part& part : parts) result.push_back(part.versions);
  return result;
}

class ToyPart final : public PipelineStage {
 public:
  ToyPart(const Communicator& stages, const Schedule& window)
      : stages_(stages.duplicate("sums")),
        jointly_(updates_jointly(window)),
        part_(stages.rank()),
        is_first_(stages.rank() == 0),
        is_last_(stages.rank() + 1 == stages.size()) {}
  std::function<void(const Action&)> before = [](const Action&) {};
  bool reads_latest = false, stashes = false;  // faults

  Tensor compute(const Action& action, Tensor input) override {
    before(action);
    if (action.kind == ActionKind::sum) {
      part_.put_aside();
      of_all_ = part_.aside;
      summed_ = stages_.all_reduce(&of_all_, &of_all_, 1, DType::i64, ReduceOp::sum, stream_);
      return {};
    }
    if (action.kind == ActionKind::update) {
      if (!jointly_) part_.put_aside();
      summed_.wait();
      part_.update(jointly_ ? of_all_ : 0);
      return {};
    }
    int version = reads_latest ? static_cast<int>(part_.versions.size()) - 1 : action.version;
    if (action.kind == ActionKind::forward) {
      stashed_[action.microbatch] = version;
      const std::int64_t x = inputs_[action.microbatch] = is_first_ ? input_of(action.microbatch) : number_in(input);
      outputs_[action.microbatch] = part_.forward(x, version);
      return tensor_of(outputs_[action.microbatch]);
    }
    if (stashes) version = stashed_.at(action.microbatch);
    const std::int64_t output = outputs_.extract(action.microbatch).mapped();
    const std::int64_t g = is_last_ ? gradient_of_loss(output, action.microbatch) : number_in(input);
    return tensor_of(part_.backward(inputs_.extract(action.microbatch).mapped(), g, version));
  }
  const std::vector<std::int64_t>& versions() const { return part_.versions; }

 private:
  static std::int64_t number_in(const Tensor& tensor) { return static_cast<std::int64_t>(tensor.at(0)); }
  static Tensor tensor_of(std::int64_t number) {
    Tensor result({1, 1}, DType::f64);
    result.set(0, static_cast<double>(number));
    return result;
  }

  Communicator stages_;
  Stream stream_{"sums"};
  Work summed_;
  std::int64_t of_all_ = 0;
  bool jointly_;
  Part part_;
  bool is_first_, is_last_;
  std::map<int, std::int64_t> inputs_, outputs_;  // by microbatch
  std::map<int, int> stashed_;                    // versions
};

using PreparePart = std::function<void(ToyPart&, int rank)>;

std::vector<std::vector<std::int64_t>> run_windows(const Schedule& window, int windows, bool overlap,
                                                   const PreparePart& prepare = {}) {
  std::vector<std::vector<std::int64_t>> result(window.stages);
  run_threads(window.stages, [&](const Communicator& world) {
    Pipeline pipeline(world, window, {.overlap = overlap});
    ToyPart part(world, window);
    if (prepare) prepare(part, world.rank());
    pipeline.run_windows(part, windows, {1, 1}, DType::f64);
    result[world.rank()] = part.versions();
  });
  return result;
}

struct Case {
  Schedule window;
  VersionOf version_of;
  VersionOf version_of_backward = version_of;

  std::vector<std::vector<std::int64_t>> loop(int windows, int missing = 0) const {
    const auto older = [missing](const VersionOf& of) {
      return [of, missing](int stage, int step) { return std::max(0, of(stage, step) - missing); };
    };
    return stretto::loop(window, windows, older(version_of), older(version_of_backward));
  }
};

std::vector<Case> cases(int p, int m) {
  return {{pipedream_schedule(p, m), [p](int stage, int step) { return std::max(0, step - (p - 1 - stage)); }},
          {vertical_pipedream_schedule(p, m), [p](int, int step) { return std::max(0, step - (p - 1)); }},
          {two_buffered_schedule(p, m), [p](int, int step) { return p > 1 ? std::max(0, step - 1) : step; }},
          {joint_two_buffered_schedule(p, m), [p](int, int step) { return p > 1 ? std::max(0, step - 1) : step; }},
          {pipemare_schedule(p, m), [p](int stage, int step) { return std::max(0, step - (p - 1 - stage)); },
           [](int, int step) { return step; }}};
}

TEST(PipelineWindows, AreTheLoopsWithTheirVersions) {
  for (const int p : {1, 2, 3, 4}) {
    for (const int m : {p, p + 3}) {
      for (const Case& each : cases(p, m)) {
        for (const int windows : {1, 2, 5}) {
          SCOPED_TRACE(testing::Message() << each.window.name << ", p " << p << ", m " << m << ", windows " << windows);
          const auto expected = each.loop(windows);
          EXPECT_EQ(run_windows(each.window, windows, true), expected);
          EXPECT_EQ(run_windows(each.window, windows, false), expected);
          if (p > 1 && windows > 2) {
            EXPECT_NE(each.loop(windows, 1), expected) << "the control: weights that are older by one update";
          }
        }
      }
    }
  }
}

// Of a stage in the middle: the first stage passes no gradient on, and reads the latest version forward.
TEST(PipelineWindows, AControlThatReadsTheLatestVersionDiffers) {
  for (const Case& each : cases(3, 4)) {
    const auto faulty = [&](ToyPart& part, int rank) {
      (each.window.stashes ? part.reads_latest : part.stashes) = rank == 1;  // the latest is what pipemare reads
    };
    EXPECT_NE(run_windows(each.window, 4, true, faulty), each.loop(4)) << each.window.name;
  }
}

TEST(PipelineWindows, OfAFileAreTheSame) {
  const Case each = cases(3, 5)[2];
  EXPECT_EQ(run_windows(schedule_from_text(to_text(each.window)), 3, true), each.loop(3));
}

#ifdef STRETTO_SANITIZE
constexpr int delayed_windows = 10;
#else
constexpr int delayed_windows = 500;
#endif

TEST(PipelineWindows, KeepTheirBitsUnderRandomDelays) {
  for (const Case& each : cases(3, 4)) {
    const auto delays = [](ToyPart& part, int rank) {
      auto random = std::make_shared<std::mt19937>(static_cast<unsigned>(rank) + 1);
      part.before = [random](const Action&) { std::this_thread::sleep_for(std::chrono::microseconds((*random)() % 100)); };
    };
    EXPECT_EQ(run_windows(each.window, delayed_windows, true, delays), each.loop(delayed_windows)) << each.window.name;
  }
}

TEST(PipelineWindows, AreRunAsWindowsAndStepsAsSteps) {
  run_threads(2, [&](const Communicator& world) {
    Pipeline window(world, two_buffered_schedule(2, 2), {});
    ToyPart part(world, window.schedule());
    expect_refusal([&] { window.run(part, {1, 1}, DType::f64); }, "Schedule 2bw is a window");
    Pipeline step(world, make_schedule(ScheduleKind::gpipe, 2, 2), {});
    expect_refusal([&] { step.run_windows(part, 2, {1, 1}, DType::f64); }, "Schedule gpipe leaves the update to its caller");
  });
}

}  // namespace
}  // namespace stretto
