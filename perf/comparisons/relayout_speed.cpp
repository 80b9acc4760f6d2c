// Times how the state of a training comes from one layout to another: in memory, and by a checkpoint that is saved and
// loaded. Both times begin with a trainer of the old layout and end with one of the new layout that could make its next
// step. Both ways have been gone once before, so that neither takes its memory from the system while it is timed.
// relayout.py runs this program and reads its line.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "stretto/launch.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/layers/state_move.hpp"
#include "stretto/models/trainer.hpp"

namespace {

using namespace stretto;

const MeshShape before{{Axis::data, 4}}, behind{{Axis::tensor, 2}, {Axis::pipeline, 2}};

struct Timed {
  double seconds = 0;
  std::int64_t received = 0;    // bytes of this rank
  std::int64_t parameters = 0;  // of the model
};

template <class Change>
Timed timed(const Communicator& world, const TrainingOptions& options, const Change& change) {
  auto trainer = std::make_unique<Trainer>(Mesh(world, before), options);
  world.barrier(Stream::inline_()).wait();
  const double begin = now_seconds();
  const std::int64_t received = change(trainer);
  world.barrier(Stream::inline_()).wait();
  return {now_seconds() - begin, received, trainer->parameters().global_elements()};
}

void measure(const Communicator& world, const TrainingOptions& options, const std::string& directory) {
  const auto move = [&](std::unique_ptr<Trainer>& trainer) {
    StateMove state(trainer->sharded(), trainer->optimizer());
    trainer.reset();
    trainer = std::make_unique<Trainer>(Mesh(world, behind), options);
    return state.into(trainer->sharded(), trainer->optimizer());
  };
  const auto save = [&](std::unique_ptr<Trainer>& trainer) {
    save_checkpoint(trainer->sharded(), trainer->optimizer(), directory, 1);
    trainer.reset();
    trainer = std::make_unique<Trainer>(Mesh(world, behind), options);
    load_checkpoint(trainer->sharded(), trainer->optimizer(), find_checkpoint(directory), true);
    trainer->optimizer().restore(1);
    return std::int64_t{0};
  };
  timed(world, options, move);
  timed(world, options, save);
  const Timed moved = timed(world, options, move), saved = timed(world, options, save);
  std::int64_t received = moved.received;
  world.all_reduce(&received, &received, 1, DType::i64, ReduceOp::sum, Stream::inline_()).wait();
  if (world.rank() != 0) return;
  std::printf(R"({"parameters": %lld, "moved_s": %.6f, "saved_s": %.6f, "received_bytes": %lld})"
              "\n",
              static_cast<long long>(moved.parameters), moved.seconds, saved.seconds, static_cast<long long>(received));
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): CLI11's, of flags that are wrong here
  TrainingOptions options;
  options.model.layers = 6;
  options.model.hidden = 384;
  options.model.vocabulary = options.model.sequence = 256;
  options.micro_batch = 1;
  std::string directory;
  CLI::App app("Times changes of the layout of a training from dp 4 to tp 2 x pp 2");
  app.add_option("--layers", options.model.layers, "Of the model")->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.model.hidden, "Its width, with a head for every 64")->check(CLI::PositiveNumber);
  app.add_option("--save", directory, "Where the checkpoint is written")->required();
  CLI11_PARSE(app, argc, argv);
  options.model.heads = options.model.hidden / 64;
  return launch(4, [&](const Communicator& world) { measure(world, options, directory); });
}
