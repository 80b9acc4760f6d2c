#pragma once
#include <optional>
#include <string>

#include "stretto/device.hpp"
#include "trainer.hpp"

namespace gpt {

// The command line of stretto-train: Megatron-LM's long names.
struct CommandLine {
  int nproc = 0;  // ranks to start here; 0: a launcher started this one
  int tensor_parallel = 1;
  int data_parallel = 0;  // 0: what is left
  TrainerOptions trainer;
  stretto::Device device = stretto::Device::cpu;
  std::int64_t steps = 100;
  double lr = 1e-3;
  double min_lr = 0;
  std::int64_t warmup = 0;
  std::string train_data, validation_data;
  std::string save, load, log_dir, trace, prompt;
  std::int64_t save_interval = 0, eval_interval = 0, sample_interval = 0, log_interval = 10;
  bool resume = false;
  bool deterministic = false;
  bool comm_report = false;

  int data_parallel_on(int ranks) const;  // throws when the product is not the number of ranks
  // Whatever can be said before a rank is started; so nothing of a GPU, which a process that forks must not have touched.
  // What is written is tried by rank 0 only, or for it by the parent.
  void check(int ranks, int rank = 0) const;
};

// Nothing: the command line asked for help, which has been printed. Throws Error(invalid_argument) in one sentence.
std::optional<CommandLine> parse_command_line(int argc, char** argv);

}  // namespace gpt
