#include "stretto/planning/layout_cost.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include "core/fail.hpp"
#include "planning/layout/file_time.hpp"
#include "planning/layout/pipeline_time.hpp"
#include "planning/layout/planned_stage.hpp"
#include "planning/layout/state_time.hpp"
#include "stretto/models/decoder.hpp"

namespace stretto {
namespace {

PipelineShape pipeline_shape(const TrainingOptions& layout) {
  const std::vector<WindowKind>& windows = all_window_kinds();
  const auto window = std::ranges::find(windows, layout.schedule_name(), &WindowKind::name);
  const bool flushes = window == windows.end();
  const ScheduleKind kind =
      flushes ? schedule_kind_from_name(layout.stages.schedule_name) : ScheduleKind::one_forward_one_backward;
  const int chunks = layout.stages.virtual_stages > 0 ? layout.stages.virtual_stages : usual_chunks(kind);
  const std::int64_t microbatches = layout.microbatches();
  require(microbatches >= 1 && microbatches <= 1 << 22, "A step of {} microbatches cannot be planned; give 1 to {}.",
          microbatches, 1 << 22);
  return {kind, layout.mesh[Axis::pipeline], static_cast<int>(microbatches), chunks, flushes ? nullptr : &*window};
}

// The innermost level of links whose unit holds both ranks.
const LinkLevel& level_between(const LinkModel& links, std::int64_t a, std::int64_t b) {
  for (const LinkLevel& level : links.levels) {
    if (level.ranks == 0 || a / level.ranks == b / level.ranks) return level;
  }
  return links.levels.back();
}

}  // namespace

class LayoutCosts::Parts {
 public:
  Parts(const DecoderShape& model, const TrainingCluster& cluster, std::int64_t ranks, const TrainingSystem& system)
      : model_(model), cluster_(cluster), ranks_(ranks), system_(system), costs_({cluster.links, static_cast<int>(ranks)}) {}

  const CollectiveCosts& costs() const { return costs_; }
  std::int64_t ranks() const { return ranks_; }

  TrainingMemory memory_of_stage(const TrainingOptions& layout, int stage) {
    const PipelineShape shape = shape_of(layout).beginning();
    TrainingMemory memory = state_memory_of(layout, shape, stage);
    const auto [activations, buffers] = activations_of(layout, shape, stage);
    memory.activations = activations;
    memory.buffers += buffers;
    return memory;
  }

  // The pipeline's, and what the state of the first stage's parameters takes beside it.
  double least_seconds(const TrainingOptions& layout) {
    const PipelineShape shape = shape_of(layout);
    const auto [known, is_new] = least_seconds_.try_emplace(key_of(layout, shape));
    Least& its = known->second;
    if (is_new) {
      const std::vector<PipelinePart> parts = parts_of(layout, shape);
      const PipelineTime least = least_pipeline_time(shape, parts);
      its = {std::max(least.seconds, turns() * least.all / shape.stages), content_of(layout, shape, parts, 0)};
    }
    const StateTime state = state_of(layout, shape, 0, its.first);
    return its.pipeline + state.exposed + state.files + state.update * turns();
  }

  LayoutCost cost(const TrainingOptions& layout) {
    const PipelineShape shape = shape_of(layout);
    const std::vector<PipelinePart> parts = parts_of(layout, shape);
    const auto [known, is_new] = times_of_pipelines_.try_emplace(key_of(layout, shape));
    if (is_new) known->second = schedules_.time(shape, parts, sharing(shape));
    const PipelineTime time = known->second;
    LayoutCost cost;
    PartTime busiest;
    double sums = 0, files = 0;
    for (int stage = 0; stage < shape.stages; ++stage) {
      const StageContent content = content_of(layout, shape, parts, stage);
      if (stage == time.busiest_stage) busiest = content.microbatch;
      const StateTime state = state_of(layout, shape, stage, content);
      sums = std::max(sums, state.exposed);
      files = std::max(files, state.files);
      cost.update = std::max(cost.update, state.update * turns());
    }
    const auto microbatches = static_cast<double>(shape.microbatches);
    const PassTime all = busiest.all();
    cost.computing = microbatches * all.computing * turns();
    cost.waiting = std::max(0.0, time.seconds - time.busiest * turns());
    cost.bubble = cost.waiting / (time.busiest * turns());
    add(cost, group_name(Axis::tensor), microbatches * all.tensor * turns());
    add(cost, group_name(Axis::ring), microbatches * all.ring * turns());
    add(cost, group_name(Axis::ulysses), microbatches * all.ulysses * turns());
    add(cost, group_name(Axis::data), sums);
    add(cost, "files", files);
    const double table = shape.window != nullptr ? 0 : table_seconds(layout);  // without a flush it travels meanwhile
    add(cost, group_name(Axis::pipeline), table);
    cost.seconds = time.seconds + sums + files + table + cost.update;
    const double tokens = static_cast<double>(layout.global_batch * model_.sequence);
    cost.tokens_per_second = tokens / cost.seconds;
    cost.flops_per_second = cost.tokens_per_second * flops_per_token(model_, layout.adapters) / static_cast<double>(ranks_);
    cost.mfu = cost.flops_per_second / cluster_.peak_flops;
    return cost;
  }

 private:
  // All remembered costs are of these types.
  PipelineShape shape_of(const TrainingOptions& layout) {
    const std::pair types{layout.sharding.dtype, layout.sharding.gradients()};
    if (!types_) types_ = types;
    require(*types_ == types, "Layouts of {} are predicted, not of {}; use another LayoutCosts.", name(types_->first),
            name(types.first));
    if (!adapters_) adapters_ = layout.adapters;
    require(*adapters_ == layout.adapters && layout.adapters.base == StoredFormat::plain,
            "Layouts are predicted for the same adapters of a plain base; use another LayoutCosts for others.");
    return pipeline_shape(layout);
  }

  double turns() const { return cluster_.turns(ranks_); }

  struct StageContent {
    PartTime microbatch;
    double elements = 0, trained = 0;  // of its parameters, on a rank
    double matrices = 0;               // seconds for the updates of whole matrices
    std::vector<ExchangedElements> exchanged = {};
  };
  StageContent content_of(const TrainingOptions& layout, const PipelineShape& shape, const std::vector<PipelinePart>& parts,
                          int stage) {
    const Schedule geometry = shape.geometry();
    const ModelCut cut = this->cut(layout, shape, stage);
    StageContent content;
    std::int64_t blocks = 0;
    bool has_embeddings = false, has_head = false;
    for (int part = 0; part < geometry.parts(); ++part) {
      if (geometry.stage_of(part) != stage) continue;
      content.microbatch = content.microbatch + parts[static_cast<std::size_t>(part)].time;
      blocks += cut.blocks[static_cast<std::size_t>(part)];
      has_embeddings |= part == 0;
      has_head |= part + 1 == geometry.parts();
    }
    content.elements = times_of(layout, shape).cost.parameters(blocks, has_embeddings, has_head);
    content.trained = layout.adapters.any() ? trained_of(layout, shape, stage) : content.elements;
    if (kind_of(layout.optimizer).whole_matrices) content.matrices = matrices_seconds(layout, shape, stage);
    if (layout.sharding.powersgd.any() || !kind_of(layout.optimizer).sums_gradients()) {
      content.exchanged = exchanged_of(layout, shape, stage);
    }
    return content;
  }

  double trained_of(const TrainingOptions& layout, const PipelineShape& shape, int stage) {
    const auto [known, is_new] = trained_.try_emplace(state_key(layout, shape, stage));
    if (!is_new) return known->second;
    std::int64_t elements = 0;
    const std::unique_ptr<Parameters> records = records_of(layout, shape, stage);
    for (const auto& parameter : records->all()) {
      if (parameter->is_here && parameter->trainable) elements += parameter->elements();
    }
    return known->second = static_cast<double>(elements);
  }

  // The seconds of the owner that computes longest, and of bringing pieces of matrices to owners and updates back.
  double matrices_seconds(const TrainingOptions& layout, const PipelineShape& shape, int stage) {
    const auto [known, is_new] = matrices_.try_emplace(state_key(layout, shape, stage));
    if (is_new) known->second = matrix_seconds(layout, *records_of(layout, shape, stage), cluster_, costs_);
    return known->second;
  }

  const std::vector<ExchangedElements>& exchanged_of(const TrainingOptions& layout, const PipelineShape& shape, int stage) {
    const auto [known, is_new] = exchanged_.try_emplace(state_key(layout, shape, stage));
    if (is_new) known->second = exchanged_elements(layout, *records_of(layout, shape, stage));
    return known->second;
  }

  StateTime state_of(const TrainingOptions& layout, const PipelineShape& shape, int stage, const StageContent& content) {
    const StateElements elements{content.elements, content.trained, times_of(layout, shape).matrix(), content.exchanged};
    const PartTime microbatch = turns() * content.microbatch;
    TrainingOptions on_stage = layout;
    on_stage.sharding = sharding_on(layout, shape, stage);
    StateTime time = state_time(on_stage, elements, microbatch, cluster_, system_, costs_);
    time.update += content.matrices;
    const bool each_microbatch = shape.window != nullptr && schedules_.of(shape.beginning()).steps > 1;
    const double updates = each_microbatch ? shape.microbatches : 1;
    const StepComputing computing{.passes = static_cast<double>(shape.microbatches) * microbatch.all().all() / updates,
                                  .last_backward = (microbatch.input + microbatch.weight).all(),
                                  .update = time.update * turns()};
    time.files = file_seconds(layout, elements, computing, cluster_);
    return {time.exposed * updates, time.update * updates, time.files * updates};
  }

  // A schedule without a flush repeats itself: its beginning is enough, and versions are counted once.
  ShardedParameters::Options sharding_on(const TrainingOptions& layout, const PipelineShape& shape, int stage) {
    if (shape.window == nullptr) return layout.sharding;
    const PipelineShape beginning = shape.beginning();
    return layout.sharding_with(schedules_.of(beginning), schedules_.versions(beginning)[static_cast<std::size_t>(stage)]);
  }

  struct Least {
    double pipeline = 0;
    StageContent first;
  };

  // A stage that waits leaves its time on the cores to others.
  StagesOnCores sharing(const PipelineShape& shape) const {
    const std::int64_t ranks = std::min<std::int64_t>(ranks_, cluster_.shared_cores.ranks);
    const int stages = static_cast<int>(std::max<std::int64_t>(1, ranks * shape.stages / ranks_));
    return {stages, stages / turns()};
  }

  static void add(LayoutCost& cost, const std::string& group, double seconds) {
    if (seconds > 0) cost.exposed[group] = seconds;
  }

  // The division of blocks over stages, which takes long.
  ModelCut cut(const TrainingOptions& layout, const PipelineShape& shape, int stage) {
    const auto key = std::tuple(shape.kind, shape.stages, shape.chunks, layout.stages.blocks);
    auto found = cuts_.find(key);
    if (found == cuts_.end()) found = cuts_.emplace(key, layout.cut(shape.geometry(), 0)).first;
    ModelCut cut = found->second;
    cut.stage = stage;
    return cut;
  }

  // Layouts that differ in nothing but their ZeRO stage have equal keys.
  using LayoutKey = std::tuple<MeshShape, std::int64_t, bool, bool, int, Recompute, bool, SequenceLayout, PipelineShape,
                               std::vector<std::int64_t>>;
  static LayoutKey key_of(const TrainingOptions& layout, const PipelineShape& shape) {
    return {layout.mesh,  layout.micro_batch,     layout.divides_rows,        layout.keeps_gathered,
            layout.tiles, layout.recompute.level, layout.recompute.partition, layout.sequence_layout,
            shape,        layout.stages.blocks};
  }

  TrainingMemory state_memory_of(const TrainingOptions& layout, const PipelineShape& shape, int stage) {
    const StateKey key = state_key(layout, shape, stage);
    const auto found = state_memory_.find(key);
    if (found != state_memory_.end()) return found->second;
    const OptimizerKind optimizer =
        shape.window != nullptr ? layout.optimizer_kind(schedules_.of(shape.beginning())) : kind_of(layout.optimizer);
    return state_memory_[key] =
               state_memory(*records_of(layout, shape, stage), layout.mesh, sharding_on(layout, shape, stage), optimizer);
  }

  using StateKey = std::tuple<MeshShape, bool, int, ScheduleKind, const WindowKind*, int, int, ZeroStage,
                              std::vector<std::int64_t>, std::vector<bool>>;
  static StateKey state_key(const TrainingOptions& layout, const PipelineShape& shape, int stage) {
    const ShardedParameters::Options::Offload& files = layout.sharding.offload;
    std::vector<bool> in_files;
    for (const auto& each : {files.optimizer, files.gradients, files.values}) in_files.push_back(!each.directory.empty());
    return {layout.mesh, layout.divides_rows,  layout.tiles,         shape.kind, shape.window, shape.chunks,
            stage,       layout.sharding.zero, layout.stages.blocks, in_files};
  }

  std::unique_ptr<Parameters> records_of(const TrainingOptions& layout, const PipelineShape& shape, int stage) {
    auto parameters = std::make_unique<Parameters>();
    const Decoder records(*parameters, model_, layout.tensor_parallel(), layout.recompute, cut(layout, shape, stage),
                          std::make_shared<LocalAttention>(), layout.adapters);
    return parameters;
  }

  // Bytes of activations, and of attention's messages.
  std::pair<std::int64_t, std::int64_t> activations_of(const TrainingOptions& layout, const PipelineShape& shape,
                                                       int stage) {
    const auto [known, is_new] = activations_.try_emplace({key_of(layout, shape), layout.global_batch, stage});
    if (is_new) {
      const PlannedStage planned(layout, schedules_.of(shape), cut(layout, shape, stage));
      known->second = {planned.activation_bytes(), planned.attention_buffers()};
    }
    return known->second;
  }

  struct Times {
    PartTime block, embeddings, head;
    DecoderCost cost;
    double matrix() const {  // the elements of a weight of a block
      double sum = 0;
      const std::vector<Product>& products = cost.block.forward.products;
      for (const Product& product : products) sum += static_cast<double>(product.n * product.k);
      return sum / static_cast<double>(products.size());
    }
  };
  const Times& times_of(const TrainingOptions& layout, const PipelineShape& shape) {
    const auto key = std::tuple(layout.mesh[Axis::tensor], layout.mesh[Axis::ulysses], layout.mesh[Axis::ring],
                                layout.micro_batch, layout.divides_rows, layout.keeps_gathered, layout.tiles,
                                layout.recompute.level, layout.recompute.partition, shape.splits(), layout.sequence_layout);
    const auto found = times_.find(key);
    if (found != times_.end()) return found->second;
    const LayerTimes times(layout, shape.splits(), cluster_, system_, ranks_, costs_);
    return times_[key] = {times.block(), times.embeddings(), times.head(), times.cost()};
  }

  std::vector<PipelinePart> parts_of(const TrainingOptions& layout, const PipelineShape& shape) {
    const Times& times = times_of(layout, shape);
    const ModelCut cut = this->cut(layout, shape, 0);
    const Schedule geometry = shape.geometry();
    std::vector<PipelinePart> parts(cut.blocks.size());
    for (int part = 0; part < geometry.parts(); ++part) {
      PipelinePart& its = parts[static_cast<std::size_t>(part)];
      its.time = static_cast<double>(cut.blocks[static_cast<std::size_t>(part)]) * times.block;
      if (part == 0) its.time = its.time + times.embeddings;
      if (part + 1 == geometry.parts()) its.time = its.time + times.head;
      for (const int other : {part - 1, part + 1}) {
        if (other < 0 || other >= geometry.parts() || geometry.stage_of(other) == geometry.stage_of(part)) continue;
        its.message = std::max(its.message, message_seconds(layout, geometry.stage_of(part), geometry.stage_of(other)));
      }
      if (!system_.blocking_messages) continue;
      // With several chunks, forward's and backward's messages go together.
      const double waits = its.message / (shape.chunks > 1 ? 2 : 1);
      its.time.forward.computing += waits;
      its.time.input.computing += waits;
      its.message = 0;
    }
    return parts;
  }

  double message_seconds(const TrainingOptions& layout, int from, int to) {
    const std::int64_t tokens = layout.micro_batch * layout.division().rows(model_.sequence);
    const double bytes = static_cast<double>(layout.tensor_parallel().own_rows(tokens).count * model_.hidden) *
                         static_cast<double>(size_of(layout.sharding.dtype));
    return exchange_seconds(layout, from, to, bytes, !layout.tensor_parallel().has_own_rows());
  }

  // A message from each rank of a stage to its peer on another. Between nodes, the ranks of a node share its ports, and
  // tensor-parallel ranks that send the same send a part each, which the receivers gather (Pipeline).
  double exchange_seconds(const TrainingOptions& layout, int from, int to, double bytes, bool same) {
    const MeshShape& mesh = layout.mesh;
    const LinkModel& links = cluster_.links;
    const std::int64_t stride = ranks_ / mesh[Axis::pipeline];
    const LinkLevel& level = level_between(links, from * stride, to * stride);
    const LinkLevel& inner = links.levels.front();
    const auto seconds = [](const LinkLevel& link, double of) {
      return (link.alpha_us + link.overhead_us) * 1e-6 + of / (link.bandwidth_gbs * 1e9);
    };
    if (&level == &inner) return seconds(inner, bytes);
    const double sharing = std::max(1.0, static_cast<double>(inner.ranks) / inner.ports);
    const bool scatters = same && mesh[Axis::tensor] > 1 && inner.ranks % mesh[Axis::tensor] == 0;
    if (!scatters) return seconds(level, bytes * sharing);
    const double part = bytes / mesh[Axis::tensor];
    return seconds(level, part * sharing) +
           collective_seconds(costs_, Collective::all_gather,
                              static_cast<std::int64_t>(bytes) / static_cast<std::int64_t>(size_of(layout.sharding.dtype)),
                              layout.sharding.dtype, {mesh[Axis::tensor], 1}, false);
  }

  // The two ends exchange the gradients of their shares of the table, unless adapters alone are trained.
  double table_seconds(const TrainingOptions& layout) {
    const bool is_frozen = layout.adapters.any() && layout.adapters.modules_to_save.empty();
    if (layout.mesh[Axis::pipeline] == 1 || !model_.tied || is_frozen) return 0;
    const int tokens_ranks = layout.mesh.ranks_over(token_axes);
    const double elements = static_cast<double>(model_.vocabulary * model_.hidden) / layout.mesh[Axis::tensor];
    const double share = elements / tokens_ranks * static_cast<double>(size_of(layout.sharding.gradients()));
    return exchange_seconds(layout, 0, layout.mesh[Axis::pipeline] - 1, share, false);
  }

  std::optional<std::pair<DType, DType>> types_;  // of values and gradients
  std::optional<AdapterOptions> adapters_;
  DecoderShape model_;
  TrainingCluster cluster_;
  std::int64_t ranks_;
  TrainingSystem system_;
  CollectiveCosts costs_;
  Schedules schedules_;
  std::map<std::tuple<ScheduleKind, int, int, std::vector<std::int64_t>>, ModelCut> cuts_;
  std::map<StateKey, TrainingMemory> state_memory_;
  std::map<StateKey, double> trained_, matrices_;
  std::map<StateKey, std::vector<ExchangedElements>> exchanged_;
  std::map<std::tuple<LayoutKey, std::int64_t, int>, std::pair<std::int64_t, std::int64_t>> activations_;
  std::map<LayoutKey, Least> least_seconds_;
  std::map<LayoutKey, PipelineTime> times_of_pipelines_;
  std::map<std::tuple<int, int, int, std::int64_t, bool, bool, int, Recompute, bool, bool, SequenceLayout>, Times> times_;
};

LayoutCosts::LayoutCosts(const DecoderShape& model, const TrainingCluster& cluster, std::int64_t ranks,
                         const TrainingSystem& system) {
  require(ranks >= 1 && ranks <= 1 << 24, "A cluster of {} ranks cannot be planned; give 1 to {}.", ranks, 1 << 24);
  parts_ = std::make_unique<Parts>(model, cluster, ranks, system);
}
LayoutCosts::~LayoutCosts() = default;

void LayoutCosts::check(const MeshShape& mesh) const {
  mesh.check(static_cast<int>(parts_->ranks()));
  int stride = 1;
  for (const Axis axis : {Axis::tensor, Axis::ulysses, Axis::ring}) {
    parts_->costs().place({mesh[axis], stride});
    stride *= mesh[axis];
  }
  parts_->costs().place({mesh.ranks_over(token_axes), mesh[Axis::tensor]});
}

TrainingMemory LayoutCosts::memory(const TrainingOptions& layout, int* stage) {
  TrainingMemory most;
  for (int each = 0; each < layout.mesh[Axis::pipeline]; ++each) {
    const TrainingMemory memory = parts_->memory_of_stage(layout, each);
    if (each > 0 && memory.total() <= most.total()) continue;
    most = memory;
    if (stage != nullptr) *stage = each;
  }
  return most;
}

std::int64_t LayoutCosts::least_memory(const TrainingOptions& layout) {
  const std::int64_t first = parts_->memory_of_stage(layout, 0).total();
  if (layout.mesh[Axis::pipeline] == 1) return first;
  return std::max(first, parts_->memory_of_stage(layout, layout.mesh[Axis::pipeline] - 1).total());
}

double LayoutCosts::least_seconds(const TrainingOptions& layout) { return parts_->least_seconds(layout); }

LayoutCost LayoutCosts::time(const TrainingOptions& layout) { return parts_->cost(layout); }

LayoutCost LayoutCosts::cost(const TrainingOptions& layout) {
  LayoutCost cost = time(layout);
  cost.memory = memory(layout, &cost.memory_stage);
  return cost;
}

}  // namespace stretto
