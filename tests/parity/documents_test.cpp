// Sequences of several documents, of which not every token counts: the loss is the mean over all counted tokens of a step
// wherever they lie, and documents are kept apart. In f64 against one rank, and against the documents one by one.
#include <gmock/gmock.h>

#include <array>

#include "matrix.hpp"
#include "parity.hpp"

namespace parity::documents_tests {
namespace {

// Lengths in tokens and targets that count, by the number of the sequence; the rest of it is padding.
struct Document {
  std::int64_t tokens, counted_from;
};
using Documents = std::vector<Document>;

// Unlike in all: the whole sequence counts, one token of it, no document does, or several do in part.
Documents documents_of(std::int64_t number, std::int64_t sequence) {
  const std::int64_t half = sequence / 2;
  const std::array<Documents, 5> kinds = {{{{3, 0}, {half, 2}, {1, 0}, {half - 5, 2}},
                                           {{sequence, sequence - 1}},
                                           {{half, half}, {2, 2}},
                                           {{sequence, 0}},
                                           {{half - 1, 4}, {half - 2, 0}}}};
  return kinds[static_cast<std::size_t>(number) % kinds.size()];
}

std::int32_t token_of(const TrainingOptions& options, std::int64_t number, std::int64_t place) {
  const double u = random_uniform(11, "documents", static_cast<std::uint64_t>(number * 1000 + place));
  return static_cast<std::int32_t>(u * u * static_cast<double>(options.model.vocabulary));
}

constexpr std::int32_t nothing = -1;

struct Written {
  std::int32_t *tokens, *targets, *starts;
};

// Writes documents from `first` on, whose tokens are those of `number` from there.
void write(const TrainingOptions& options, std::int64_t number, const Documents& documents, const Written& to) {
  std::int64_t at = 0;
  for (const Document& document : documents) {
    for (std::int64_t i = 0; i < document.tokens; ++i) {
      to.tokens[at + i] = token_of(options, number, at + i);
      to.targets[at + i] = i >= document.counted_from ? token_of(options, number, at + i + 1) : nothing;
      to.starts[at + i] = static_cast<std::int32_t>(at);
    }
    at += document.tokens;
  }
  const std::int64_t padding = at;
  for (; at < options.model.sequence; ++at) {
    to.tokens[at] = 0;
    to.targets[at] = nothing;
    to.starts[at] = static_cast<std::int32_t>(padding);
  }
}

FillSlot packed(const TrainingOptions& options, std::int64_t step) {
  return [options, first = step * options.global_batch](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets,
                                                        std::int32_t* starts) {
    write(options, first + slot, documents_of(first + slot, options.model.sequence), {tokens, targets, starts});
  };
}

std::vector<Trace> train_on(Layout layout, const TrainingOptions& options, const TextOfStep& text) {
  std::vector<Trace> traces(static_cast<std::size_t>(layout.ranks()));
  run_threads(layout.ranks(), [&](const Communicator& world) {
    Trainer trainer(Mesh(world, layout.mesh()), options);
    traces[static_cast<std::size_t>(world.rank())] = advance(trainer, 0, trained_steps, text);
  });
  return traces;
}

std::vector<MatrixCell> cells() {
  std::vector<MatrixCell> result = {{{2}},
                                    {{4}, ZeroStage::gradients},
                                    {{1, 2}},
                                    {{2, 2}, ZeroStage::values, true},
                                    {{1, 1, 2}},
                                    {{2, 1, 2}, ZeroStage::optimizer, false, ScheduleKind::zb_h1},
                                    {{1, 1, 1, 2}},
                                    {{1, 1, 1, 1, 2}},
                                    {{2, 1, 1, 2}, ZeroStage::values},
                                    {{1, 2, 1, 1, 2}, ZeroStage::none, true},
                                    {{1, 1, 1, 2, 2}},
                                    {{1, 1, 2, 2, 2}}};
  const std::array places = {SequenceLayout::zigzag, SequenceLayout::contiguous, SequenceLayout::striped};
  const std::array masks = {"dense", "window:5", "dense", "strided:4"};
  const std::array recomputations = {Recompute::none, Recompute::full, Recompute::selective};
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i].family = i % 2 == 0 ? "gpt2" : "llama";
    result[i].places = places[i % places.size()];
    result[i].mask = masks[i / 2 % masks.size()];
    result[i].recompute.level = recomputations[i % recomputations.size()];
    result[i].micro_batch = 1 + static_cast<int>(i % 2);
  }
  return result;
}

// Sequences of one length, so that all cells have the same documents.
TrainingOptions options_for(const MatrixCell& cell) {
  TrainingOptions options = options_of(cell);
  options.model.sequence = 24;
  return options;
}

TEST(Documents, LossIsTheMeanOverCountedTokensInEveryLayout) {
  for (const MatrixCell& cell : cells()) {
    SCOPED_TRACE(text_of(cell));
    const TrainingOptions options = options_for(cell);
    TrainingOptions alone = on_one_rank(options);
    alone.micro_batch = 1;
    const Trace expected = train_on({}, alone, packed).front();
    const std::vector<Trace> traces = train_on(cell.layout, options, packed);
    for (const Trace& trace : traces) {
      EXPECT_EQ(compare(expected, trace, parity_tolerance, has_of(cell.layout)).all(), "");
    }
    EXPECT_EQ(missing(expected, traces), "");
    const TextOfStep without_documents = [](const TrainingOptions& of, std::int64_t step) {
      return
          [fill = packed(of, step)](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) {
            fill(slot, tokens, targets, starts);
            std::fill_n(starts, 24, 0);
          };
    };
    EXPECT_NE(compare(expected, train_on(cell.layout, options, without_documents).front(), 1e-6).loss, "") << "the control";
  }
}

// The mean of the sequences' means is another number.
TEST(Documents, MeanOfMeansDiffers) {
  run_threads(1, [&](const Communicator& world) {
    TrainingOptions options = tiny({});
    options.model.sequence = 24;
    options.global_batch = 2;
    Trainer trainer(Mesh(world, {}), options);
    const double loss = trainer.compute_gradients(packed(options, 0)).loss;
    double mean = 0, weighted = 0, counted = 0;
    for (std::int64_t slot = 0; slot < 2; ++slot) {
      const double its = trainer.evaluate(
          [&](std::int64_t, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) {
            write(options, slot, documents_of(slot, 24), {tokens, targets, starts});
          },
          1);
      double count = 0;
      for (const Document& document : documents_of(slot, 24)) {
        count += static_cast<double>(document.tokens - document.counted_from);
      }
      mean += its / 2;
      weighted += its * count;
      counted += count;
    }
    EXPECT_NEAR(loss, weighted / counted, 1e-12);
    EXPECT_GT(std::abs(loss - mean), 1e-4) << "the control";
  });
}

// As many validation sequences as ranks do not share evenly.
TEST(Documents, ValidationCountsTheSameTokensInEveryLayout) {
  const auto losses_on = [](Layout layout) {
    std::vector<double> losses;
    run_threads(layout.ranks(), [&](const Communicator& world) {
      TrainingOptions options = tiny({});
      options.model.sequence = 24;
      options.global_batch = 2L * layout.data;
      Trainer trainer(Mesh(world, layout.mesh()), options);
      std::vector<double> own;
      for (const std::int64_t count : {2, 5}) own.push_back(trainer.evaluate(packed(options, 0), count));
      if (world.rank() == 0) losses = own;
    });
    return losses;
  };
  const std::vector<double> expected = losses_on({});
  for (const Layout layout : {Layout{.data = 2}, Layout{.data = 3}, Layout{.data = 2, .ring = 2}, Layout{.ulysses = 2}}) {
    EXPECT_THAT(losses_on(layout), testing::Pointwise(testing::DoubleNear(1e-12), expected));
  }
}

// The oracle knows no documents: a document alone stands at the beginning of a sequence, where causality hides what follows.
TEST(Documents, PackEqualsItsDocumentsOneByOne) {
  constexpr std::int64_t sequences = 4;
  for (const char* const family : {"gpt2", "qwen3"}) {
    for (const char* const mask : {"dense", "window:5"}) {
      MatrixCell cell;
      cell.family = family;
      cell.mask = mask;
      TrainingOptions options = options_for(cell);
      options.model.sequence = 48;
      options.micro_batch = 1;
      std::vector<std::pair<std::int64_t, std::int64_t>>
          places;  // number of the sequence, and where a document begins there
      std::vector<Document> documents;
      for (std::int64_t number = 0; number < sequences; ++number) {
        std::int64_t at = 0;
        for (const Document& document : documents_of(number, 48)) {
          places.emplace_back(number, at);
          documents.push_back(document);
          at += document.tokens;
        }
      }
      const auto gradients_of = [&](Layout layout, std::int64_t batch, const FillSlot& fill) {
        TrainingOptions its = options;
        its.global_batch = batch;
        Trace trace;
        run_threads(layout.ranks(), [&](const Communicator& world) {
          Trainer trainer(Mesh(world, layout.mesh()), its);
          Trace own;
          own.losses.push_back(trainer.compute_gradients(fill).loss);
          own.gradients.push_back(pieces_of(trainer, trainer.sharded().whole_gradients()));
          if (world.rank() == 0) trace = own;
        });
        return trace;
      };
      const Trace expected =
          gradients_of({}, std::ssize(documents),
                       [&](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) {
                         const auto [number, first] = places[static_cast<std::size_t>(slot)];
                         const auto [length, counted_from] = documents[static_cast<std::size_t>(slot)];
                         for (std::int64_t i = 0; i < 48; ++i) {
                           tokens[i] = token_of(options, number, first + i);
                           targets[i] = i >= counted_from && i < length ? token_of(options, number, first + i + 1) : nothing;
                           starts[i] = 0;
                         }
                       });
      for (const Layout layout : {Layout{}, Layout{.ring = 2}, Layout{.ulysses = 2}, Layout{.ring = 2, .ulysses = 2}}) {
        const Trace pack = gradients_of(layout, sequences, packed(options, 0));
        EXPECT_EQ(compare(expected, pack, parity_tolerance).all(), "") << family << ' ' << mask << ", ring " << layout.ring;
        for (std::int64_t left_out = 1; left_out < 3; ++left_out) {
          const auto one_mask_less = [&](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets,
                                         std::int32_t* starts) {
            packed(options, 0)(slot, tokens, targets, starts);
            if (slot != 0) return;
            const std::int32_t its = left_out == 1 ? 3 : 28, before = left_out == 1 ? 0 : 27;
            std::replace(starts, starts + 48, its, before);
          };
          const Trace wrong = gradients_of(layout, sequences, one_mask_less);
          EXPECT_NE(compare(expected, wrong, 1e-6).gradient, "") << "the control, left out " << left_out;
        }
      }
    }
  }
}

TEST(Documents, RefusesWhatHasNoMean) {
  run_threads(2, [&](const Communicator& world) {
    TrainingOptions options = tiny({.data = 2});
    Trainer trainer(Mesh(world, Layout{.data = 2}.mesh()), options);
    const auto none = [&](std::int64_t, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) {
      std::fill_n(tokens, 48, 0);
      std::fill_n(targets, 48, nothing);
      std::fill_n(starts, 48, 0);
    };
    EXPECT_THAT(sentence_of([&] { trainer.step(none, 1e-3); }), testing::HasSubstr("No token of 4 sequences counts"));
    EXPECT_THAT(sentence_of([&] { trainer.evaluate(none, 3); }), testing::HasSubstr("No token of 3 sequences counts"));
    const auto undeclared = [&](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets) {
      text_of_step(options, 0)(slot, tokens, targets);
      targets[5] = nothing;
    };
    EXPECT_THAT(sentence_of([&] { trainer.step(undeclared, 1e-3); }), testing::HasSubstr("2 of 96 targets are below 0"));
    const auto late = [&](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) {
      text_of_step(options, 0)(slot, tokens, targets);
      std::fill_n(starts, 48, 7);
    };
    EXPECT_THAT(sentence_of([&] { trainer.step(late, 1e-3); }), testing::HasSubstr("token 0 begins at 7"));
    EXPECT_EQ(sentence_of([&] { trainer.step(text_of_step(options, 0), 1e-3); }), "") << "the control";
  });
}

}  // namespace
}  // namespace parity::documents_tests
