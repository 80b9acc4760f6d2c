#include "training_plan.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fail.hpp"
#include "stretto/kernels.hpp"

namespace gpt {

using namespace stretto;

namespace {

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

// A tensor with a row for each token of a microbatch.
struct Rows {
  std::int64_t tokens;          // rows
  std::int64_t hidden, number;  // bytes of a tensor of the residual's width, and of one statistic per token
  Rows(const TrainerOptions& options)
      : tokens(options.micro_batch * options.model.sequence),
        hidden(tokens * options.model.hidden * bytes_of(options.sharding.dtype)),
        number(tokens * bytes_of(kernels::accumulator(options.sharding.dtype))) {}
};

std::int64_t microbatches_of(const TrainerOptions& options, const MeshShape& mesh) {
  return options.global_batch / options.micro_batch / mesh.data;
}

// The most that Model::loss holds at a time: at the logits, or in the backward of the last block.
std::int64_t activation_bytes(const TrainerOptions& options, const MeshShape& mesh) {
  const ModelShape& model = options.model;
  const Rows row(options);
  const DType dtype = options.sharding.dtype;
  const BlockActivations block =
      block_activations({.hidden = model.hidden, .heads = model.heads, .layers = model.layers}, options.micro_batch,
                        model.sequence, dtype, mesh.tensor, options.recompute);
  const std::int64_t logits = row.tokens * ((model.vocabulary + mesh.tensor - 1) / mesh.tensor) * bytes_of(dtype);
  // The last norm's input, result and statistics, the gradient of the result, and the input of a block that is gathered
  // ahead.
  const std::int64_t ahead = options.recompute.partition ? row.hidden - block.kept : 0;
  const std::int64_t head = 3 * row.hidden + ahead + 2 * row.number + logits;
  const std::int64_t dx = row.hidden;
  // Tokens, targets and positions of a step, and of each microbatch three numbers per token that the loss is computed from.
  const std::int64_t slots = options.global_batch / mesh.data;
  const std::int64_t of_step =
      slots * model.sequence * 3 * bytes_of(DType::i32) + microbatches_of(options, mesh) * 3 * row.number;
  return of_step + model.layers * block.kept + std::max(head, dx + block.backward);
}

// The bytes that the layers of a tensor-parallel group sum and gather: two all-reduces of a block's rows in each pass, and
// with full recomputation that of attention once more (Shoeybi et al. 2019). Small sums may take an algorithm that sends
// more, and a ring sends partial sums of 16 bits in f32.
std::int64_t tensor_parallel_bytes(const TrainerOptions& options, const MeshShape& mesh) {
  const Rows row(options);
  const std::int64_t layers = options.model.layers;
  const bool again = options.recompute.level == Recompute::full;
  const std::int64_t sums = (4 + (again ? 1 : 0)) * layers + 2;  // and one at each end of the model
  const std::int64_t gathers = options.recompute.partition ? layers : 0;
  const std::int64_t cross_entropy = 2 * 3 * row.number;
  const std::int64_t all = microbatches_of(options, mesh) * ((2 * sums + gathers) * row.hidden + cross_entropy);
  return all * (mesh.tensor - 1) / mesh.tensor;
}

using Kind = std::pair<MemoryKind, std::int64_t TrainingMemory::*>;
constexpr std::array<Kind, 5> kinds = {{{MemoryKind::values, &TrainingMemory::values},
                                        {MemoryKind::gradients, &TrainingMemory::gradients},
                                        {MemoryKind::optimizer, &TrainingMemory::optimizer},
                                        {MemoryKind::activations, &TrainingMemory::activations},
                                        {MemoryKind::buffers, &TrainingMemory::buffers}}};

std::string amount(std::int64_t bytes) {
  const auto number = static_cast<double>(bytes);
  return bytes >= 1'000'000'000 ? fmt::format("{:.1f} GB", number * 1e-9) : fmt::format("{:.2f} MB", number * 1e-6);
}

// The bytes that are held now, or for kinds that come and go the most so far.
std::int64_t measured(MemoryKind kind) {
  const MemoryUse use = memory_use(kind);
  const bool comes_and_goes = kind == MemoryKind::activations || kind == MemoryKind::buffers;
  return static_cast<std::int64_t>(comes_and_goes ? use.peak_bytes : use.bytes);
}

}  // namespace

TrainingPlan plan_training(const TrainerOptions& options, const MeshShape& mesh) {
  options.check(mesh);
  Parameters parameters;
  const Model model(parameters, options.model, {.planned_ranks = mesh.tensor}, options.recompute);
  TrainingPlan plan;
  plan.ranks = mesh.ranks();
  plan.parameters = parameters.global_elements();
  plan.memory = state_memory(parameters, mesh, options.sharding);
  plan.memory.activations = activation_bytes(options, mesh);
  const int passes = options.recompute.level == Recompute::full ? 3 : 2;
  plan.sent = state_traffic(parameters, mesh, options.sharding, microbatches_of(options, mesh), passes);
  if (mesh.tensor > 1) plan.sent[group_name(Axis::tensor)] = tensor_parallel_bytes(options, mesh);
  return plan;
}

std::string memory_table(const TrainingMemory& plan) {
  std::string text = "Memory of a rank by formula:";
  for (const auto& [kind, member] : kinds) {
    text += fmt::format("{} {} {}", kind == MemoryKind::values ? "" : ",", name(kind), amount(plan.*member));
  }
  return text + fmt::format("; model state {}, in all {}", amount(plan.values + plan.gradients + plan.optimizer),
                            amount(plan.total()));
}

std::string memory_table_with_measured(const TrainingMemory& plan) {
  std::string text = fmt::format("{:<26}{:>12}{:>14}", "Memory of rank 0", "by formula", "measured");
  std::int64_t sum = 0;
  for (const auto& [kind, member] : kinds) {
    const std::int64_t held = measured(kind);
    sum += held;
    text += fmt::format("\n  {:<24}{:>12}{:>14}", name(kind), amount(plan.*member), amount(held));
  }
  return text + fmt::format("\n  {:<24}{:>12}{:>14}\n  {:<24}{:>12}{:>14}", "in all", amount(plan.total()), amount(sum),
                            "taken from the system", "", amount(static_cast<std::int64_t>(reserved_memory())));
}

std::string traffic_table(const TrainingPlan& plan) {
  std::string text = "Sent by a rank in a step by formula:";
  for (const auto& [group, bytes] : plan.sent) text += fmt::format(" {} {};", group, amount(bytes));
  return plan.sent.empty() ? text + " nothing" : text.substr(0, text.size() - 1);
}

void write_plan(const TrainingPlan& plan, const std::string& file) {
  nlohmann::ordered_json memory;
  for (const auto& [kind, member] : kinds) memory[name(kind)] = plan.memory.*member;
  const nlohmann::ordered_json all{
      {"ranks", plan.ranks}, {"parameters", plan.parameters}, {"memory", memory}, {"sent", plan.sent}};
  std::ofstream out(file);
  out << all.dump(1) << '\n';
  out.close();
  if (!out) fail(ErrorCode::io, "Cannot write {}: {}.", file, std::strerror(errno));
}

}  // namespace gpt
