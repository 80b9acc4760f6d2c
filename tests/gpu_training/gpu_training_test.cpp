// The trainer on a stand-in GPU with the host's kernels: the host's bits, whatever the timing of its streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "apps/train/run/sampling.hpp"
#include "parity/parity.hpp"
#include "stand_in/on_host_gpu.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

TrainingOptions tiny_of(DType dtype) {
  TrainingOptions options = tiny({}, dtype);
  options.model.sequence = 16;
  return options;
}

// The trace of three steps, and a text sampled from the model after them.
struct Training {
  Trace trace;
  std::string text;
};

Training train_on(Device device, DType dtype) {
  Training result;
  run_threads(1, [&](const Communicator& world) {
    const OnDevice on(device);
    Trainer trainer(Mesh(world, {{Axis::tensor, 1}, {Axis::data, 1}}), tiny_of(dtype));
    EXPECT_EQ(trainer.parameters().all().front()->value.device(), device);
    result.trace = advance(trainer, 0, trained_steps);
    result.text = apps::sample(trainer, "\1\2\3", {.length = 4, .temperature = 0.5});
  });
  return result;
}

using TrainingOnAGpu = OnHostGpu<testing::TestWithParam<DType>>;

TEST_P(TrainingOnAGpu, HasTheBitsOfTheHost) {
  const Training host = train_on(Device::cpu, GetParam());
  const Training device = train_on(Device::cuda, GetParam());
  EXPECT_EQ(compare(host.trace, device.trace, equal_bits).all(), "");
  EXPECT_EQ(host.text, device.text);
}

// A checkpoint's contents depend neither on the device that writes it nor on the device that loads it.
TEST_P(TrainingOnAGpu, GoesOnFromTheHostsCheckpointAndBack) {
  const TemporaryDirectory directory;
  Pieces there;
  Pieces back;
  run_threads(1, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {{Axis::tensor, 1}, {Axis::data, 1}}), tiny_of(GetParam()));
    advance(trainer, 0, 1);
    save_checkpoint(trainer.sharded(), trainer.optimizer(), directory.path(), 1);
    there = advance(trainer, 1, 2).parameters;
  });
  run_threads(1, [&](const Communicator& world) {
    const OnDevice on(Device::cuda);
    Trainer trainer(Mesh(world, {{Axis::tensor, 1}, {Axis::data, 1}}), tiny_of(GetParam()));
    const auto loaded = load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(directory.path()), true);
    EXPECT_EQ(loaded.step, 1);
    trainer.optimizer().restore(loaded.optimizer_steps);
    advance(trainer, 1, 1);
    save_checkpoint(trainer.sharded(), trainer.optimizer(), directory.path(), 2);
  });
  run_threads(1, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {{Axis::tensor, 1}, {Axis::data, 1}}), tiny_of(GetParam()));
    const auto loaded = load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(directory.path()), true);
    EXPECT_EQ(loaded.step, 2);
    trainer.optimizer().restore(loaded.optimizer_steps);
    back = advance(trainer, 2, 1).parameters;
  });
  EXPECT_EQ(Comparer(equal_bits).pieces(there, back, "parameter"), "");
}

INSTANTIATE_TEST_SUITE_P(Types, TrainingOnAGpu, testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return stretto::name(type.param); });

// Every second step is computed in another stream, which must wait for the update of the parameters in the first.
std::vector<double> losses_in_two_streams(Device device) {
  std::vector<double> losses;
  run_threads(1, [&](const Communicator& world) {
    const OnDevice on(device);
    const TrainingOptions options = tiny_of(DType::f32);
    Trainer trainer(Mesh(world, {{Axis::tensor, 1}, {Axis::data, 1}}), options);
    for (int step = 0; step < 6; ++step) {
      std::optional<OnDevice> other;
      if (step % 2 == 1) other.emplace(device);
      losses.push_back(trainer.step(text_of_step(options, step), 3e-2).loss);
    }
  });
  return losses;
}

TEST(TrainingInTwoStreams, NeedsTheirWaits) {
  const std::vector<double> expected = losses_in_two_streams(Device::cpu);
  const auto same = [&](const HostGpuOptions& options) {
    HostGpu gpu(options);
    const GpuInUse in_use(gpu);
    return losses_in_two_streams(Device::cuda) == expected;
  };
  EXPECT_TRUE(same({.longest_delay_us = 500}));
#if !defined(__SANITIZE_THREAD__)  // the control is the race that it would find
  bool always = true;
  for (std::uint64_t seed = 1; always && seed < 20; ++seed) {  // without waits, data may arrive in time by chance
    always = same({.longest_delay_us = 500, .seed = seed, .ignores_waits = true});
  }
  EXPECT_FALSE(always);
#endif
}

}  // namespace
}  // namespace parity
