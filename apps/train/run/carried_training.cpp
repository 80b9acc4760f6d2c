#include "apps/train/run/carried_training.hpp"

#include <utility>
#include <vector>

#include "apps/train/run/resuming.hpp"
#include "stretto/stretto.hpp"

namespace apps {

using namespace stretto;

CarriedTraining::CarriedTraining(Trainer& trainer) : state(trainer.sharded(), trainer.optimizer()), notes(trainer.notes()) {}

void share(const Communicator& ranks, CarriedTraining& training) {
  std::int64_t numbers[3] = {training.step, training.samples, static_cast<std::int64_t>(training.notes.size())};
  ranks.broadcast(numbers, numbers, 3, DType::i64, 0, Stream::inline_(), {.tag = "ranks join"}).wait();
  std::vector<std::pair<std::string, std::string>> notes(training.notes.begin(), training.notes.end());
  notes.resize(static_cast<std::size_t>(numbers[2]));
  for (auto& [name, value] : notes) {
    broadcast_text(ranks, name, "ranks join");
    broadcast_text(ranks, value, "ranks join");
  }
  training.step = numbers[0];
  training.samples = numbers[1];
  training.notes = {notes.begin(), notes.end()};
}

}  // namespace apps
