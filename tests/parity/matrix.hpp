#pragma once
#include <set>
#include <tuple>

#include "parity.hpp"
#include "stretto/models/families.hpp"
#include "support/error.hpp"

// Every combination of the axes with ZeRO, sequence parallelism, schedules and recomputation on up to eight ranks, as data.
namespace parity {

struct MatrixCell {
  Layout layout;
  ZeroStage zero = ZeroStage::none;
  bool own_rows = false;  // --sp
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;
  RecomputeOptions recompute;
  // These take turns over the cells instead of multiplying them.
  SequenceLayout places = SequenceLayout::zigzag;
  std::string mask = "dense";
  bool keeps_gathered = false;
  int microbatches = 2, micro_batch = 1;
  int kv_heads = 0;             // of the model; 0: as many as heads of queries
  std::string family = "gpt2";  // or llama, with a head of its own, or qwen2 or qwen3
};

inline std::string text_of(const MatrixCell& cell) {
  const Layout& layout = cell.layout;
  std::string text = fmt::format("dp {} tp {} pp {} cp {} ulysses {}, zero {}", layout.data, layout.tensor, layout.pipeline,
                                 layout.ring, layout.ulysses, static_cast<int>(cell.zero));
  if (cell.own_rows) text += cell.keeps_gathered ? ", sp kept" : ", sp";
  if (layout.pipeline > 1) text += fmt::format(", {}", name(cell.schedule));
  text += fmt::format(", {} microbatches of {}, recompute {}{}", cell.microbatches, cell.micro_batch,
                      static_cast<int>(cell.recompute.level), cell.recompute.partition ? " divided" : "");
  if (cell.kv_heads > 0) text += fmt::format(", {} heads of keys", cell.kv_heads);
  return text + fmt::format(", {} {}, {}", name(cell.places), cell.mask, cell.family);
}

// Layers do not divide evenly into the parts of a model. Units are small, so that there are several.
inline TrainingOptions options_of(const MatrixCell& cell, DType dtype = DType::f64) {
  const Layout& layout = cell.layout;
  TrainingOptions options = tiny({.tensor = layout.tensor * layout.ulysses}, dtype);
  options.model.layers = layout.pipeline > 1 ? layout.pipeline * usual_chunks(cell.schedule) + 1 : 2;
  options.model.kv_heads = cell.kv_heads;
  if (cell.family != "gpt2") {
    options.model.head_size = 6;  // heads are wider than their share of the residual
    options.model.mlp_width = 3 * options.model.hidden;
    options.model = llama_shape(options.model);
    options.model.tied = cell.family != "llama";
    options.model.biases.qkv = cell.family == "qwen2";
    options.model.qk_norm = cell.family == "qwen3";
  }
  options.divides_rows = cell.own_rows;
  options.keeps_gathered = cell.keeps_gathered;
  options.sequence_layout = cell.places;
  options.mask = attention_mask_from_text(cell.mask);
  const std::int64_t multiple = options.on(layout.mesh()).division().multiple();
  options.model.sequence = (15 / multiple + 1) * multiple;
  options.micro_batch = cell.micro_batch;
  options.global_batch = std::int64_t{cell.microbatches} * cell.micro_batch * layout.data;
  options.stages.schedule_name = name(cell.schedule);
  options.sharding.zero = cell.zero;
  options.sharding.unit_bytes = std::size_t{64} << 10;
  options.recompute = cell.recompute;
  return options;
}

// All combinations; `refused` gets those that the validator refuses, with its sentences.
inline std::vector<MatrixCell> matrix_cells(std::vector<std::pair<MatrixCell, std::string>>* refused = nullptr) {
  const std::array masks = {"dense", "window:5", "strided:4", "global:3+window:4"};
  const std::array families = {"gpt2", "llama", "qwen3", "gpt2", "qwen2", "llama"};
  const std::array places = {SequenceLayout::zigzag, SequenceLayout::contiguous, SequenceLayout::striped};
  std::vector<RecomputeOptions> recomputations;
  for (const Recompute level : {Recompute::none, Recompute::selective, Recompute::full}) recomputations.push_back({level});
  recomputations.push_back({.level = Recompute::full, .partition = true});
  std::vector<MatrixCell> cells;
  std::size_t turn = 0;
  const auto add = [&](MatrixCell cell) {
    ++turn;
    const int pipeline = cell.layout.pipeline;
    if (cell.layout.ring > 1) cell.places = places[turn % places.size()];
    if (cell.layout.ring * cell.layout.ulysses > 1) cell.mask = masks[turn / 3 % masks.size()];
    cell.keeps_gathered = cell.own_rows && cell.recompute.level != Recompute::selective && turn % 2 == 0;
    cell.microbatches = pipeline == 1                                                 ? 1 + static_cast<int>(turn % 3)
                        : turn % 2 == 0 || cell.schedule == ScheduleKind::interleaved ? pipeline
                                                                                      : pipeline + 1;
    cell.micro_batch = 1 + static_cast<int>(turn % 2);
    cell.family = families[turn / 2 % families.size()];
    // One or two heads of keys on each rank, or one on two ranks, in three of five cells.
    const int divided = cell.layout.tensor * cell.layout.ulysses;
    const int of_a_rank = turn % 5 == 0 ? 1 : turn % 5 == 1 && 8 % (2 * divided) == 0 ? 2 : 0;
    cell.kv_heads = of_a_rank * divided;
    if (turn % 5 == 2 && cell.layout.tensor % 2 == 0 && cell.layout.ulysses == 1) cell.kv_heads = cell.layout.tensor / 2;
    const std::string sentence = sentence_of([&] { options_of(cell).on(cell.layout.mesh()).check(); });
    if (sentence.empty()) {
      cells.push_back(cell);
    } else if (refused != nullptr) {
      refused->emplace_back(cell, sentence);
    }
  };
  constexpr int most = 8;
  for (int pipeline = 1; pipeline <= most; ++pipeline) {
    for (int data = 1; pipeline * data <= most; ++data) {
      for (int ring = 1; pipeline * data * ring <= most; ++ring) {
        for (int ulysses = 1; pipeline * data * ring * ulysses <= most; ++ulysses) {
          for (int tensor = 1; pipeline * data * ring * ulysses * tensor <= most; ++tensor) {
            const Layout layout{data, tensor, pipeline, ring, ulysses};
            for (const ScheduleKind schedule : all_schedule_kinds()) {
              if (pipeline == 1 && schedule != ScheduleKind::one_forward_one_backward) continue;
              for (const bool own_rows : {false, true}) {
                for (const RecomputeOptions& recompute : recomputations) {
                  for (const ZeroStage zero : zero_stages) add({layout, zero, own_rows, schedule, recompute});
                }
              }
            }
          }
        }
      }
    }
  }
  return cells;
}

}  // namespace parity
