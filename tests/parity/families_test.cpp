// Llama, Mistral, Qwen 2 and Qwen 3 against transformers, which computed the logits, the loss and the gradients of small
// models (tests/reference/make_decoder_references.py): in all layouts, there and back; and mistakes that these files must
// show.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "hf_files.hpp"
#include "parity.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

constexpr std::int64_t sequences = 2, length = 24;

std::string references() {  // the tests may run on another machine than the one that built them
  const char* const elsewhere = std::getenv("DECODER_REFERENCES");
  return elsewhere != nullptr ? elsewhere : DECODER_REFERENCES;
}

// A model of transformers and what it computes.
class DecoderReference {
 public:
  explicit DecoderReference(const std::string& name) : directory(references() + "/" + name) {
    const ModelFiles files = ModelFiles::of_directory(directory);
    shape = files.shape();
    shape.sequence = length;
    files.check(shape);
  }

  TrainingOptions options(ZeroStage zero = ZeroStage::none) const {
    TrainingOptions result;
    result.model = shape;
    result.sharding.dtype = DType::f64;
    result.sharding.zero = zero;
    result.micro_batch = 1;
    result.global_batch = sequences;
    return result;
  }

  // The gradients of all parameters, put together of those of the file's tensors, row by row.
  Pieces gradients(const Parameters& parameters) const {
    Pieces pieces;
    for (const auto& parameter : parameters.all()) {
      Piece piece{parameter->global_shape,
                  Shape(parameter->global_shape.size(), 0),
                  parameter->global_shape,
                  {},
                  parameter->global_name()};
      for (const ForeignRows& block : foreign_rows(shape, *parameter, length)) {
        const std::vector<double> tensor = numbers_of(file, "gradient." + block.tensor.name);
        const auto first = tensor.begin() + block.first * block.tensor.columns();
        piece.values.insert(piece.values.end(), first, first + block.count * block.tensor.columns());
      }
      pieces[parameter->global_name()] = piece;
    }
    return pieces;
  }

  FillSlot batch() const {
    return [tokens = tokens, targets = numbers_of<std::int32_t>(file, "targets")](std::int64_t slot, std::int32_t* to,
                                                                                  std::int32_t* next) {
      std::copy_n(tokens.begin() + slot * length, length, to);
      std::copy_n(targets.begin() + slot * length, length, next);
    };
  }

  std::string directory;
  DecoderShape shape;
  const SafetensorsReader file{directory + "/reference.safetensors"};
  const std::vector<std::int32_t> tokens = numbers_of<std::int32_t>(file, "tokens");
};

enum class PositionsOf { whole_sequence, rank };  // the latter is the mistake of counting a rank's tokens from 0 on

// The largest difference of this rank's logits, relative to the largest of all logits.
double logits_error(const DecoderReference& reference, Trainer& trainer,
                    PositionsOf positions = PositionsOf::whole_sequence) {
  const SequenceDivision division = trainer.options().division();
  const Mesh& mesh = trainer.mesh();
  const std::vector<std::int64_t> own = division.positions(length, mesh.rank(Axis::ring), mesh.rank(Axis::ulysses));
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < sequences; ++i) {
    for (const std::int64_t position : own)
      tokens.push_back(reference.tokens[static_cast<std::size_t>(i * length + position)]);
  }
  const Tensor logits =
      trainer.logits(positions == PositionsOf::rank ? Batch::of(tokens, {}, static_cast<std::int64_t>(own.size()))
                                                    : Batch::of(tokens, {}, own));
  if (!logits) return 0;  // of another stage
  const std::vector<double> expected = numbers_of(reference.file, "logits");
  const auto rows = static_cast<std::int64_t>(own.size());
  double error = 0, largest = 0;
  for (const double each : expected) largest = std::max(largest, std::abs(each));
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    const std::int64_t row = i / logits.columns(), column = trainer.model().first_column() + i % logits.columns();
    const std::int64_t token = row / rows * length + own[static_cast<std::size_t>(row % rows)];
    const double value = expected[static_cast<std::size_t>(token * reference.shape.vocabulary + column)];
    error = std::max(error, std::abs(logits.data<double>()[i] - value));
  }
  return error / largest;
}

struct Way {
  const char* name;
  Layout layout;
  ZeroStage zero = ZeroStage::none;
  bool divides_rows = false;
};

std::vector<Way> ways(const DecoderShape& shape) {
  std::vector<Way> result{{"one rank", {}}, {"a ring", {.ring = 2}}, {"ZeRO 3", {.data = 2}, ZeroStage::values}};
  if (shape.layers > 1) result.push_back({"stages", {.pipeline = 2}});
  const auto kv_heads = static_cast<int>(shape.filled().kv_heads);
  if (shape.heads % (2 * kv_heads) == 0) result.push_back({"two ranks to a head", {.tensor = 2 * kv_heads}});
  if (kv_heads % 2 != 0) return result;
  result.push_back({"tensor parallel", {.tensor = 2}});
  result.push_back({"sequence parallel", {.tensor = 2}, ZeroStage::none, true});
  result.push_back({"Ulysses", {.ulysses = 2}});
  return result;
}

class Families : public testing::TestWithParam<std::string> {};

TEST_P(Families, GiveTransformersLogitsLossAndGradients) {
  const DecoderReference reference(GetParam());
  double worst = 0;
  for (const Way& way : ways(reference.shape)) {
    SCOPED_TRACE(way.name);
    run_threads(way.layout.ranks(), [&](const Communicator& world) {
      TrainingOptions options = reference.options(way.zero);
      options.divides_rows = way.divides_rows;
      Trainer trainer(Mesh(world, way.layout.mesh()), options);
      const double error = logits_error(reference, begin_with(trainer, reference.directory));
      EXPECT_LT(error, parity_tolerance) << "logits of rank " << world.rank();
      Comparer comparer(parity_tolerance, has_of(way.layout));
      const double loss = trainer.compute_gradients(reference.batch()).loss;
      EXPECT_EQ(comparer.numbers(numbers_of(reference.file, "loss"), {loss}, "loss"), "");
      const Pieces gradients = pieces_of(trainer, trainer.sharded().whole_gradients());
      EXPECT_EQ(comparer.pieces(reference.gradients(trainer.parameters()), gradients, "the gradient of"), "");
      if (world.rank() == 0) worst = std::max({worst, error, comparer.worst()});
    });
  }
  RecordProperty("worst", fmt::format("{:.2g}", worst));
}

// The gradients, too, are those of other weights.
void expect_other_results(const DecoderReference& reference, const HfTensors& tensors, const char* mistake) {
  const TemporaryDirectory directory;
  std::filesystem::copy_file(reference.directory + "/config.json", directory / "config.json");
  write_tensors(directory / "model.safetensors", tensors);
  run_threads(1, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {}), reference.options());
    EXPECT_GT(logits_error(reference, begin_with(trainer, directory.path())), 1e-3) << mistake;
    trainer.compute_gradients(reference.batch());
    const Pieces gradients = pieces_of(trainer, trainer.sharded().whole_gradients());
    EXPECT_NE(Comparer(1e-3).pieces(reference.gradients(trainer.parameters()), gradients, ""), "") << mistake;
  });
}

TEST_P(Families, DoNotWithMistakes) {
  const DecoderReference reference(GetParam());
  const HfTensors tensors = tensors_of(reference.directory + "/model.safetensors");
  HfTensors interleaved = tensors, swapped = tensors;
  const std::int64_t head = reference.shape.filled().head_size;
  for (auto& [name, tensor] : interleaved) {
    if (name.find("q_proj.") == std::string::npos && name.find("k_proj.") == std::string::npos) continue;
    const std::int64_t rows = tensor.shape.front(), columns = static_cast<std::int64_t>(tensor.values.size()) / rows;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t in_head = row % head, from = row - in_head + in_head % 2 * (head / 2) + in_head / 2;
      std::copy_n(tensors.at(name).values.begin() + from * columns, columns, tensor.values.begin() + row * columns);
    }
  }
  expect_other_results(reference, interleaved, "rows of q and k as GGUF's Llamas have them");
  for (std::int64_t layer = 0; layer < reference.shape.layers; ++layer) {
    const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
    std::swap(swapped.at(mlp + "gate_proj.weight"), swapped.at(mlp + "up_proj.weight"));
  }
  expect_other_results(reference, swapped, "gate and up swapped");
  run_threads(2, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {{Axis::ring, 2}}), reference.options());
    EXPECT_GT(logits_error(reference, begin_with(trainer, reference.directory), PositionsOf::rank), 1e-3)
        << "positions of a rank's tokens counted from 0 on";
  });
}

TEST_P(Families, ComeBackBitForBit) {
  const DecoderReference reference(GetParam());
  const DecoderShape shape = ModelFiles::of_directory(reference.directory).shape();
  const HfTensors tensors = tensors_of(reference.directory + "/model.safetensors");
  for (const Way& way : ways(shape)) {
    if (way.layout.ring * way.layout.ulysses > 1) continue;
    SCOPED_TRACE(way.name);
    const TemporaryDirectory directory;
    const std::string to = directory / "model";
    run_threads(way.layout.ranks(), [&](const Communicator& world) {
      TrainingOptions options = reference.options(way.zero);
      options.sharding.dtype = DType::f32;
      Trainer trainer(Mesh(world, way.layout.mesh()), options);
      export_hf(begin_with(trainer, reference.directory), to, 0);
    });
    const HfTensors back = tensors_of(to + "/model.safetensors");
    EXPECT_EQ(back.size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      EXPECT_EQ(back.at(name).shape, tensor.shape) << name;
      EXPECT_EQ(back.at(name).values, tensor.values) << name;
    }
    DecoderShape its = ModelFiles::of_directory(to).shape();
    its.sequence = shape.sequence;
    EXPECT_EQ(its.filled(), shape.filled());
  }
}

std::vector<std::string> names() {
  std::set<std::string> found;
  std::error_code none;  // without any, GoogleTest complains
  for (const auto& entry : std::filesystem::directory_iterator(references(), none)) found.insert(entry.path().filename());
  return {found.begin(), found.end()};
}

INSTANTIATE_TEST_SUITE_P(OfTransformers, Families, testing::ValuesIn(names()), [](const auto& its) { return its.param; });

}  // namespace
}  // namespace parity
