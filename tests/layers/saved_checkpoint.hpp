#pragma once
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include "saved_training.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {

inline void train_and_save(const Layout& layout, const std::string& directory) {
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout);
    training.advance(0, 3);
    training.save(directory, 3);
  });
}

// The values of all ranks, each of which has trained the last three of six steps.
inline std::vector<std::map<std::string, double>> load_and_continue(const Layout& layout, const std::string& directory,
                                                                    bool with_optimizer = true) {
  std::vector<std::map<std::string, double>> values(static_cast<std::size_t>(layout.mesh.ranks()));
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout, 99);  // no initial value of the fresh training may remain
    const LoadedCheckpoint loaded = training.load(find_checkpoint(directory), with_optimizer);
    EXPECT_EQ(loaded.step, 3);
    EXPECT_EQ(loaded.optimizer_steps, with_optimizer ? 3 - layout.delay : 0);
    training.advance(3, 3);
    values[static_cast<std::size_t>(world.rank())] = training.values();
  });
  return values;
}

// A checkpoint of step 3, saved by one rank, and the sentence of the error of loading it.
class CheckpointErrors : public testing::Test {
 protected:
  void SetUp() override { train_and_save({}, directory.path()); }

  std::string error_of_loading(std::int64_t columns = 4, const OptimizerOptions& optimizer = {}) const {
    std::string sentence;
    run_threads(1, [&](const Communicator& world) {
      Training training(world, {.optimizer = optimizer}, 99, columns);
      sentence = sentence_of([&] { training.load(checkpoint); });
    });
    EXPECT_THAT(sentence, testing::EndsWith("."));
    EXPECT_THAT(sentence, testing::Not(testing::HasSubstr("\n")));
    return sentence;
  }

  const TemporaryDirectory directory;
  const std::string checkpoint = directory / "step_00000003";
  const std::string shard = checkpoint + "/rank_00000.safetensors";
  const std::string index = checkpoint + "/index.json";
};

}  // namespace stretto
