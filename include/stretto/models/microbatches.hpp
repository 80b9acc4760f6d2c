#pragma once
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "stretto/models/decoder.hpp"
#include "stretto/overlap/pipeline.hpp"

namespace stretto {

// One rank's computations with the microbatches of a step, for a Pipeline.
class STRETTO_API Microbatches final : public PipelineStage {
 public:
  // Microbatch i is the sequences [i * micro_batch, (i + 1) * micro_batch) of `all`. With a factor, backward adds factor
  // times the gradient of the loss's sum to the gradients; without, there are only forwards, which keep nothing. Without
  // targets there is no loss, and logits() are those of the last microbatch. ended() is called when all gradients of a
  // microbatch in a chunk have been added.
  Microbatches(
      const Decoder& model, ParameterUse& use, const Batch& all, std::int64_t micro_batch, std::optional<double> factor,
      std::function<void()> ended = [] {});

  Tensor compute(const Action& action, Tensor input) override;

  // The losses of all microbatches, on the rank that has the model's last part; empty elsewhere.
  const std::vector<Decoder::Loss>& losses() const { return losses_; }
  const Tensor& logits() const { return logits_; }

 private:
  struct UnderWay {  // a microbatch in a chunk
    Decoder::Saved saved;
    Tensor logits;
  };
  Batch batch_of(int microbatch) const { return all_.part(microbatch * micro_batch_, micro_batch_); }
  Tensor forward(const Action& action, Tensor input);
  Tensor backward(const Action& action, Tensor gradient);
  void end(const Action& action);

  const Decoder& model_;
  ParameterUse& use_;
  Batch all_;
  std::int64_t micro_batch_;
  std::optional<double> factor_;
  std::function<void()> ended_;
  std::map<std::pair<int, int>, UnderWay> under_way_;  // by microbatch and chunk
  std::vector<Decoder::Loss> losses_;
  Tensor logits_;
};

}  // namespace stretto
