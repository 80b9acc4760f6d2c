// Adapters on every kind of layout against one rank, and on one rank against the model whose weights have them added: its
// gradients dW say theirs. The base stays as it was, bit for bit.
#include <gmock/gmock.h>

#include "adapted.hpp"
#include "by_hand.hpp"
#include "matrix.hpp"
#include "support/tiers.hpp"

namespace parity::adapters {
namespace {

TEST(Adapters, LeaveTheFirstStepsLossItsBits) {
  for (const Layout layout : {Layout{}, {.tensor = 2}, {.data = 2, .pipeline = 2}}) {
    for (const bool own_rows : {false, true}) {
      if (own_rows && layout.tensor == 1) continue;
      TrainingOptions options = tiny(layout);
      options.divides_rows = own_rows;
      const double base = train(layout, options).front().losses.front();
      options.adapters = all_linear();
      EXPECT_EQ(train(layout, options).front().losses.front(), base);
      // The control: with other values of B.
      EXPECT_NE(train(layout, options, begin_apart).front().losses.front(), base);
    }
  }
}

// The rows of a weight's matrix [out, in] that a record's adapter has.
struct Rows {
  std::string weight;
  std::int64_t first = 0, parts = 1, of_parts = 1;
};
Rows rows_of(const std::string& record, const DecoderShape& shape) {
  const std::string last = record.substr(record.find_last_of('.') + 1);
  const std::string before = record.substr(0, record.find_last_of('.')) + ".weight";
  const std::int64_t heads = shape.filled().kv_heads == 0 ? 1 : shape.heads / shape.filled().kv_heads;
  if (last == "q") return {before, 0, heads, heads + 2};
  if (last == "k") return {before, heads, 1, heads + 2};
  if (last == "v") return {before, heads + 1, 1, heads + 2};
  if (last == "gate") return {before, 0, 1, 2};
  if (last == "up") return {before, 1, 1, 2};
  return {record + ".weight"};
}

TEST(Adapters, HaveTheGradientsOfTheMergedWeight) {
  for (const char* const family : {"gpt2", "llama", "qwen3"}) {
    MatrixCell cell{.kv_heads = 4, .family = family};
    TrainingOptions options = options_of(cell);
    options.clip_norm = 0;
    const DecoderShape shape = options.model;
    options.adapters = all_linear();
    options.adapters.rank_pattern = {{family == std::string("gpt2") ? "c_fc" : "k_proj", 2}};
    Pieces values, gradients, merged;
    double loss = 0, merged_loss = 0;
    run_threads(1, [&](const Communicator& world) {
      Trainer trainer(Mesh(world, {}), options);
      begin_apart(trainer);
      values = pieces_of(trainer, trainer.sharded().whole_values());
      loss = trainer.compute_gradients(text_of_step(options, 0)).loss;
      gradients = pieces_of(trainer, trainer.sharded().whole_gradients());
      TrainingOptions plain = options;
      plain.adapters = {};
      Trainer other(Mesh(world, {}), plain);
      for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        for (const auto& [record, adapter] : adapters_of_block(options.adapters, shape, layer).by_record) {
          const Piece &a = values.at(record + ".lora_A.weight"), &b = values.at(record + ".lora_B.weight");
          const std::int64_t r = adapter.rank, in = a.global_shape.back();
          EXPECT_EQ(a.global_shape, (Shape{r, in}));
          const Rows rows = rows_of(record, shape);
          Piece& w = values.at(rows.weight);
          const std::int64_t all = static_cast<std::int64_t>(w.values.size()) / in;
          const std::int64_t first = all / rows.of_parts * rows.first;
          const std::int64_t count = static_cast<std::int64_t>(b.values.size()) / r;
          EXPECT_EQ(count, all / rows.of_parts * rows.parts);
          for (std::int64_t i = 0; i < count; ++i) {
            for (std::int64_t j = 0; j < in; ++j) {
              double sum = 0;
              for (std::int64_t k = 0; k < r; ++k) {
                sum += b.values[static_cast<std::size_t>(i * r + k)] * a.values[static_cast<std::size_t>(k * in + j)];
              }
              w.values[static_cast<std::size_t>((first + i) * in + j)] += adapter.scale * sum;
            }
          }
        }
      }
      for (const ShardedParameters::Range& range : other.sharded().ranges()) {
        const Piece& piece = values.at(other.parameters().all()[range.parameter]->name);
        for (std::int64_t i = 0; i < range.count; ++i) {
          range.value.set(i, piece.values[static_cast<std::size_t>(range.first + i)]);
        }
      }
      other.sharded().share_values();
      merged_loss = other.compute_gradients(text_of_step(options, 0)).loss;
      merged = pieces_of(other, other.sharded().whole_gradients());
    });
    EXPECT_NEAR(loss, merged_loss, 1e-12 * loss);
    Pieces expected;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      for (const auto& [record, adapter] : adapters_of_block(options.adapters, shape, layer).by_record) {
        const std::string name_a = record + ".lora_A.weight", name_b = record + ".lora_B.weight";
        const Piece &a = values.at(name_a), &b = values.at(name_b);
        const std::int64_t r = adapter.rank, in = a.global_shape.back();
        const Rows rows = rows_of(record, shape);
        const Piece& dw = merged.at(rows.weight);
        const std::int64_t all = static_cast<std::int64_t>(dw.values.size()) / in;
        const std::int64_t first = all / rows.of_parts * rows.first;
        const std::int64_t count = static_cast<std::int64_t>(b.values.size()) / r;
        Piece da = a, db = b;
        std::ranges::fill(da.values, 0);
        std::ranges::fill(db.values, 0);
        for (std::int64_t i = 0; i < count; ++i) {
          for (std::int64_t j = 0; j < in; ++j) {
            const double d = adapter.scale * dw.values[static_cast<std::size_t>((first + i) * in + j)];
            for (std::int64_t k = 0; k < r; ++k) {
              const auto in_a = static_cast<std::size_t>(k * in + j), in_b = static_cast<std::size_t>(i * r + k);
              da.values[in_a] += d * b.values[in_b];
              db.values[in_b] += d * a.values[in_a];
            }
          }
        }
        expected[name_a] = da;
        expected[name_b] = db;
      }
    }
    EXPECT_GE(expected.size(), 16U) << family;
    EXPECT_EQ(Comparer(parity_tolerance).pieces(expected, only(gradients, true), "the gradient of"), "") << family;
  }
}

struct AdaptedCell {
  MatrixCell cell;
  AdapterOptions adapters = all_linear();
};

std::vector<AdaptedCell> adapted_cells() {
  std::vector<AdaptedCell> cells;
  int turn = 0;
  const auto add = [&](MatrixCell cell) {
    const char* const families[] = {"gpt2", "llama", "qwen2"};
    cell.family = families[turn % 3];
    const int ranks = cell.layout.tensor * cell.layout.ulysses;
    if (turn % 2 == 0) cell.kv_heads = 8 % (2 * ranks) == 0 ? 2 * ranks : ranks;
    AdaptedCell each{cell};
    if (turn % 4 == 3) each.adapters.targets = {};  // the usual ones
    if (turn % 4 == 1) each.adapters.layers_to_transform = {1};
    cells.push_back(each);
    ++turn;
  };
  for (const ZeroStage zero : zero_stages) {
    add({.layout = {.data = 2}, .zero = zero});
    add({.layout = {.data = 2}, .zero = zero, .recompute = {Recompute::full}});
    for (const bool own_rows : {false, true}) {
      add({.layout = {.tensor = 2}, .zero = zero, .own_rows = own_rows});
      add({.layout = {.data = 2, .tensor = 2}, .zero = zero, .own_rows = own_rows, .recompute = {Recompute::selective}});
      add({.layout = {.tensor = 2, .pipeline = 2}, .zero = zero, .own_rows = own_rows, .schedule = ScheduleKind::zb_h1});
    }
    add({.layout = {.tensor = 4}, .zero = zero, .own_rows = true, .recompute = {Recompute::none}, .keeps_gathered = true});
    add({.layout = {.tensor = 2, .pipeline = 2},
         .zero = zero,
         .own_rows = true,
         .schedule = ScheduleKind::zb_h1,
         .recompute = {Recompute::full},
         .keeps_gathered = true});
    add({.layout = {.data = 2, .pipeline = 2}, .zero = zero, .schedule = ScheduleKind::zb_v});
    add({.layout = {.pipeline = 2}, .zero = zero, .schedule = ScheduleKind::interleaved});
    add({.layout = {.ring = 2}, .zero = zero});
    add({.layout = {.tensor = 2, .ring = 2}, .zero = zero, .own_rows = true});
    add({.layout = {.ulysses = 2}, .zero = zero});
    add({.layout = {.data = 2, .ulysses = 2}, .zero = zero, .recompute = {Recompute::full}});
  }
  return cells;
}

TEST(Adapters, TrainAlikeOnEveryLayout) {
  for (const AdaptedCell& each : adapted_cells()) {
    TrainingOptions options = options_of(each.cell);
    options.adapters = each.adapters;
    options.clip_norm = 1e-3;  // below the norms, so that steps depend on them
    const Trace expected = adapted_on_one_rank(options);
    EXPECT_EQ(adapted_divergence(expected, each.cell.layout, options), "") << text_of(each.cell);
    EXPECT_GT(expected.norms.front(), 1e-3);
  }
}

TEST(Adapters, LeaveTheBaseItsBits) {
  const Layout layout{.data = 2, .tensor = 2};
  for (const ZeroStage zero : zero_stages) {
    TrainingOptions options = tiny(layout);
    options.sharding.zero = zero;
    options.adapters = all_linear();
    run_threads(layout.ranks(), [&](const Communicator& world) {
      Trainer trainer(Mesh(world, layout.mesh()), options);
      const Pieces before = pieces_of(trainer, trainer.sharded().whole_values());
      const Pieces after = advance(trainer, 0, trained_steps).parameters;
      EXPECT_EQ(Comparer(equal_bits).pieces(only(before, false), only(after, false), "after training,"), "");
      // The control: the adapters have changed.
      EXPECT_NE(Comparer(equal_bits).pieces(only(before, true), only(after, true), "after training,"), "");
      for (const ShardedParameters::Range& range : trainer.sharded().ranges()) {
        EXPECT_EQ(bool(range.gradient), is_factor(trainer.parameters().all()[range.parameter]->name));
      }
    });
  }
}

// The control: the gradients of an A, of which tensor-parallel ranks each compute a part, are not summed over them.
TEST(Adapters, DifferIfAWholeFactorsGradientIsNotSummed) {
  const Layout layout{.tensor = 2};
  TrainingOptions options = tiny(layout);
  options.adapters = all_linear();
  options.clip_norm = 0;
  const auto differs = [&](const std::string& name) {
    const auto traced = [&](Layout on, const Fault& fault) {
      Trace first;
      run_threads(on.ranks(), [&](const Communicator& world) {
        Trace trace = train_by_hand(world, on, on.ranks() > 1 ? options : on_one_rank(options), fault);
        if (world.rank() == 0) first = std::move(trace);
      });
      return first;
    };
    const Fault fault{.in_records = [&](Parameters& parameters) {
      for (const auto& parameter : parameters.all()) {
        if (parameter->name == name) leave_out_of_sum(*parameter, Axis::tensor);
      }
    }};
    return !compare(traced({}, {}), traced(layout, fault), parity_tolerance).all().empty();
  };
  EXPECT_FALSE(differs("none"));
  EXPECT_TRUE(differs("h.0.attn.c_attn.lora_A.weight"));
  EXPECT_TRUE(differs("h.1.mlp.c_proj.lora_B.weight"));
}

TEST(Adapters, TrainModulesToSaveToo) {
  MatrixCell cell{.family = "llama"};
  TrainingOptions options = options_of(cell);
  options.adapters = {.rank = 2, .modules_to_save = {"lm_head", "input_layernorm"}};
  std::set<std::string> trained;
  run_threads(1, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {}), options);
    for (const auto& parameter : trainer.parameters().all()) {
      if (parameter->trainable && !is_factor(parameter->name)) trained.insert(parameter->name);
    }
  });
  EXPECT_EQ(trained, (std::set<std::string>{"lm_head.weight", "h.0.ln_1.weight", "h.1.ln_1.weight"}));
  const auto sentence = [&](std::vector<std::string> names) {
    options.adapters.modules_to_save = std::move(names);
    Parameters parameters;
    return sentence_of([&] {
      const Decoder model(parameters, options.model, {}, {}, ModelCut::whole(options.model.layers),
                          std::make_shared<LocalAttention>(), options.adapters);
    });
  };
  EXPECT_THAT(sentence({"wte"}), testing::HasSubstr("There is no module wte to save"));
  EXPECT_THAT(sentence({"q_proj"}), testing::HasSubstr("The module q_proj to save is trained together with"));
  EXPECT_EQ(sentence({"q_proj", "k_proj", "v_proj"}), "");
}

// A base that is kept in fewer bits computes as the base of its rounded values does, and neither is the base itself.
TEST(Adapters, OnAStoredBaseHaveTheBitsOfTheRoundedBase) {
  enum class Base { whole, rounded, stored };
  for (const StoredFormat format : {StoredFormat::nf4, StoredFormat::int8}) {
    for (const Layout layout :
         of_today({Layout{.data = 2}, {.data = 2, .tensor = 2}, {.data = 2, .pipeline = 2}, Layout{}})) {
      for (const auto& [zero, tiles] : of_today({std::pair{ZeroStage::optimizer, 1},
                                                 {ZeroStage::optimizer, 4},
                                                 {ZeroStage::values, 1},
                                                 {ZeroStage::values, 4}},
                                                3)) {
        if (tiles > 1 && layout.pipeline > 1 && zero == ZeroStage::values) continue;  // they would stay through a step
        TrainingOptions options = tiny(layout, DType::f32);
        options.sharding.zero = zero;
        options.tiles = tiles;
        options.recompute.level = layout.pipeline > 1 ? Recompute::full : Recompute::none;
        options.adapters = all_linear();
        options.adapters.base = format;
        const auto trained = [&](Base base) {
          return train(layout, options, [&](Trainer& trainer) {
            begin_apart(trainer);
            if (base != Base::whole) trainer.sharded().store();
            if (base == Base::rounded) trainer.sharded().restore();
          });
        };
        const std::vector<Trace> stored = trained(Base::stored), rounded = trained(Base::rounded),
                                 whole = trained(Base::whole);
        for (std::size_t rank = 0; rank < stored.size(); ++rank) {
          EXPECT_EQ(stored[rank].losses, rounded[rank].losses);
          EXPECT_NE(stored[rank].losses, whole[rank].losses) << "the control";
          for (std::size_t step = 0; step < stored[rank].gradients.size(); ++step) {
            for (const auto& [name, piece] : only(rounded[rank].gradients[step], true)) {
              EXPECT_EQ(stored[rank].gradients[step].at(name).values, piece.values) << name;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace parity::adapters
