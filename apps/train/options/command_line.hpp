#pragma once
#include <optional>
#include <string>

#include "apps/tokenizers/tokenizer.hpp"
#include "apps/train/data/token_data.hpp"
#include "apps/train/options/adapter_options.hpp"
#include "apps/train/options/layout_options.hpp"
#include "apps/train/options/relayout_options.hpp"
#include "apps/train/options/weight_options.hpp"
#include "apps/train/run/sampling.hpp"
#include "stretto/device.hpp"
#include "stretto/models/trainer.hpp"
#include "stretto/require_same.hpp"

namespace apps {

// Whether training goes on from the newest checkpoint in --save: if_any begins where there is none.
enum class Resume { no, yes, if_any };

// The command line of stretto-train, with Megatron-LM's long names: what its flags say, what follows from them, and which of
// them contradict each other.
struct CommandLine {
  int nproc = 0;  // ranks to start; 0: a launcher has started this one
  stretto::TrainingOptions trainer;
  LayoutOptions layout;
  stretto::Device device = stretto::Device::cpu;
  std::int64_t steps = 100;
  double lr = 1e-3;
  double min_lr = 0;
  std::int64_t warmup = 0;
  DataOptions data;
  WeightOptions weights;
  std::string save, load, log_dir, trace, prompt;
  SamplingOptions sample;
  bool sample_only = false;
  int keep = 0;  // checkpoints; 0: all
  std::int64_t save_interval = 0, eval_interval = 0, sample_interval = 0, log_interval = 10;
  std::int64_t check_replicas = 0;  // steps between comparisons; 0: none
  std::optional<double> straggler_threshold;
  double first_step_timeout = 0;  // seconds; 0: STRETTO_TIMEOUT
  Resume resume = Resume::no;
  // Checkpoints hold adapters only; what they adapt comes from the files of a model, or from the seed. Not so where it came
  // from a checkpoint.
  bool saves_adapters_only = false;
  std::vector<WithAdapter> with;  // to load beside the adapters that are trained
  bool allow_changes = false;
  int max_restarts = 0;
  int rejoin = 0;  // how often processes start for ranks that are lost
  bool elastic = false, replicate_state = false;
  bool deterministic = false;
  bool comm_report = false;
  bool dry_run = false;
  bool default_batch = true;   // --global-batch-size was left out
  int planned_ranks = 0;       // of a dry run
  std::string json;            // of a dry run
  std::string pipemare_flags;  // those that were given

  std::vector<Relayout> relayouts;  // in the order of their steps, or of signals
  bool relayouts_on_signal() const { return !relayouts.empty() && relayouts.front().on_signal; }

  std::vector<stretto::NamedValue> values;  // of the flags that must be the same on all ranks

  stretto::CosineSchedule rates() const { return {lr, min_lr, warmup, steps}; }
  bool scales_loss() const { return trainer.sharding.dtype == stretto::DType::f16; }
  // The layout of so many ranks, of those that are not servers, or of each replica. Throws if they do not divide into it.
  stretto::MeshShape mesh_on(int ranks) const;
  // The same run in another layout. It keeps all `relayouts`, also those that it has behind it.
  CommandLine laid_out(const stretto::TrainingOptions& layout) const;
  // The run in the layout that it has behind so many steps, or so many requests by signals.
  CommandLine after(std::int64_t steps_done, std::int64_t layouts_asked) const;
  // Whether some ranks do the same work, so that one of them can be slow.
  bool has_ranks_to_compare(int ranks) const {
    return (ranks - trainer.servers.count) / trainer.diloco.replicas >
           (layout.automatic ? 1 : trainer.mesh[stretto::Axis::pipeline]);
  }
  // The training data; null without --train-data, which a run without steps does not need. The first call reads them, also
  // for copies of this object that are made afterwards, and for processes that fork.
  std::shared_ptr<const TrainingData> training_data() const;
  // Returns the tokenizer of samples and the prompt; without data and a vocabulary, a model of 256 tokens writes bytes.
  // Throws if the prompt has no tokens in it.
  std::unique_ptr<Tokenizer> tokenizer(const std::shared_ptr<const TrainingData>& data) const;
  // Checks everything that can be checked before a rank is started. Does not touch a GPU, since the process may still fork.
  // Only rank 0, or its parent, tries whether files can be written.
  void check(int ranks, int rank = 0) const;
  void check_layout(int ranks) const;  // the part of check() that depends on the layout

 private:
  DataOptions data_with_tokenizer() const;

  mutable std::shared_ptr<const TrainingData> training_data_;
};

}  // namespace apps
