#include "apps/train/run/carried_training.hpp"

#include "stretto/require_same.hpp"
#include "stretto/stream.hpp"

namespace apps {

using namespace stretto;

CarriedTraining::CarriedTraining(Trainer& trainer) : state(trainer.sharded(), trainer.optimizer()), notes(trainer.notes()) {}

void share(const Communicator& ranks, CarriedTraining& training) {
  constexpr const char* tag = "ranks join";
  std::int64_t numbers[2] = {training.step, training.samples};
  ranks.broadcast(numbers, numbers, 2, DType::i64, 0, Stream::inline_(), {.tag = tag}).wait();
  training.step = numbers[0];
  training.samples = numbers[1];
  broadcast_texts(ranks, training.notes, tag);
}

}  // namespace apps
