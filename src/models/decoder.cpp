#include "stretto/models/decoder.hpp"

#include <cmath>
#include <numeric>
#include <utility>

#include "core/fail.hpp"
#include "models/adapted_modules.hpp"
#include "overlap/offload/tensor_file.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

constexpr Initial embedding_initial{0, 0.02};  // of tokens, positions and the head

std::optional<LearnedPositions> learned_positions(Parameters& parameters, const DecoderShape& shape,
                                                  const TensorParallel& tensor_parallel) {
  if (shape.positions != DecoderShape::Positions::learned) return std::nullopt;
  return LearnedPositions(parameters, "wpe", shape.sequence, shape.hidden, embedding_initial, tensor_parallel);
}

}  // namespace

Batch Batch::of(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                const std::vector<std::int64_t>& positions) {
  const MemoryScope activations(MemoryKind::activations);
  const auto length = static_cast<std::int64_t>(positions.size());
  std::vector<std::int32_t> places;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    places.push_back(static_cast<std::int32_t>(positions[i % positions.size()]));
  }
  return {static_cast<std::int64_t>(tokens.size()) / length, length, Tensor::of(tokens),
          targets.empty() ? Tensor() : Tensor::of(targets), Tensor::of(places)};
}

Batch Batch::of(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets, std::int64_t length) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(length));
  std::iota(positions.begin(), positions.end(), 0);
  return of(tokens, targets, positions);
}

Batch Batch::part(std::int64_t first, std::int64_t count) const {
  const auto of = [&](const Tensor& all) { return all ? all.view(first * length, {count * length}) : Tensor(); };
  const std::int64_t attended = starts ? starts.size() / sequences : 0;  // of each sequence
  return {.sequences = count,
          .length = length,
          .tokens = of(tokens),
          .targets = of(targets),
          .positions = of(positions),
          .starts = starts ? starts.view(first * attended, {count * attended}) : Tensor(),
          .draws = of(draws)};
}

Decoder::Decoder(Parameters& parameters, const DecoderShape& shape, const TensorParallel& tensor_parallel,
                 const RecomputeOptions& recompute, const ModelCut& cut,
                 const std::shared_ptr<const AttentionCore>& attention, const AdapterOptions& adapters)
    : shape_(shape.filled()),
      tensor_parallel_(tensor_parallel),
      adapter_weights_(std::make_shared<AdapterWeights>()),
      table_(parameters.place_next(shape.tied ? cut.place_of_tied_table() : cut.place(0)), "wte", shape.vocabulary,
             shape.hidden, embedding_initial, tensor_parallel),
      positions_(learned_positions(parameters.place_next(cut.place(0)), shape, tensor_parallel)),
      inputs_(recompute.directory.empty() ? nullptr : std::make_shared<TensorFile>(recompute.directory)),
      chunks_(
          make_chunks(parameters, shape_, tensor_parallel, recompute, cut, attention, adapters, adapter_weights_, inputs_)),
      // The norm and the head belong to the last part, like the last block.
      norm_(parameters, "ln_f", shape.hidden, shape.norm, tensor_parallel),
      cross_entropy_(tensor_parallel) {
  if (!shape.tied) head_.emplace(parameters, "lm_head", shape.vocabulary, shape.hidden, embedding_initial, tensor_parallel);
  freeze_base(parameters, shape_, adapters);
  if (adapters.any()) adapter_weights_->emplace("", 1);
  for (const auto& other : adapters.others) adapter_weights_->emplace(other.first, 1);
}

void Decoder::make_files() {
  if (inputs_) inputs_->make();
}

std::optional<OffloadUse> Decoder::offloaded() const {
  if (!inputs_) return {};
  return inputs_->use();
}

void Decoder::weigh_adapters(const AdapterWeights& weights) {
  for (const auto& [name, weight] : weights) {
    require(adapter_weights_->contains(name), "There are no adapters '{}' to count {} times; give the name of some.", name,
            weight);
    require(std::isfinite(weight), "Adapters '{}' cannot count {} times; give a number.", name, weight);
  }
  for (const auto& [name, weight] : weights) (*adapter_weights_)[name] = weight;
}

double Decoder::weight_of_adapters(const std::string& name) const {
  const auto found = adapter_weights_->find(name);
  require(found != adapter_weights_->end(), "There are no adapters '{}'; give the name of some.", name);
  return found->second;
}

std::vector<Decoder::Chunk> Decoder::make_chunks(Parameters& parameters, const DecoderShape& shape,
                                                 const TensorParallel& tensor_parallel, const RecomputeOptions& recompute,
                                                 const ModelCut& cut, const std::shared_ptr<const AttentionCore>& attention,
                                                 const AdapterOptions& adapters,
                                                 const std::shared_ptr<const AdapterWeights>& weights,
                                                 const std::shared_ptr<TensorFile>& inputs) {
  std::vector<Chunk> chunks;
  const std::shared_ptr<const RotaryPositions> positions = RotaryPositions::of(shape);
  std::int64_t number = 0;
  for (std::size_t part = 0; part < cut.blocks.size(); ++part) {
    parameters.place_next(cut.place(part));
    Chunk chunk{.is_first = part == 0, .is_last = part + 1 == cut.blocks.size(), .blocks = {}};
    for (std::int64_t i = 0; i < cut.blocks[part]; ++i) {
      AdapterSet its = adapters_of_block(adapters, shape, number);
      its.weights = weights;
      chunk.blocks.emplace_back(parameters, "h." + std::to_string(number++) + ".", shape, tensor_parallel, recompute,
                                attention, positions, its, inputs);
    }
    if (cut.stages[part] == cut.stage) chunks.push_back(std::move(chunk));
  }
  return chunks;
}

Tensor Decoder::forward(int chunk, const Batch& batch, Tensor x, Saved& saved, ParameterUse& use) const {
  const MemoryScope activations(MemoryKind::activations);
  const Chunk& its = chunks_[static_cast<std::size_t>(chunk)];
  if (its.is_first) {
    x = table_.embed(batch.tokens, use);
    if (positions_) positions_->add(batch.positions, x, use);
  }
  saved.blocks.resize(its.blocks.size());
  for (std::size_t i = 0; i < its.blocks.size(); ++i) {
    const Tokens tokens{batch.sequences, batch.length, batch.positions, batch.starts, batch.draws};
    x = its.blocks[i].forward(x, tokens, saved.blocks[i], use);
  }
  if (!its.is_last) return x;
  return head().logits(norm_.forward(x, saved.norm, use), batch.tokens.size(), use, &saved.normed);
}

Decoder::Loss Decoder::loss(const Tensor& logits, const Batch& batch) const {
  const MemoryScope activations(MemoryKind::activations);
  Loss loss;
  cross_entropy_.forward(logits, batch.targets, first_column(), loss);
  return loss;
}

void Decoder::loss_backward(const Tensor& logits, const Batch& batch, const Loss& loss, double factor) const {
  cross_entropy_.backward(logits, batch.targets, first_column(), loss, factor);
}

Tensor Decoder::head_backward(Tensor dlogits, Saved& saved, ParameterUse& use, WeightGradients* later) const {
  const Tensor dnormed = head().logits_backward(std::exchange(saved.normed, {}), dlogits, use, later);
  dlogits = {};
  Tensor dx = tensor_parallel_.tensor_to_sum(dnormed.shape(), dnormed.dtype());
  dx.zero();
  norm_.backward(dnormed, saved.norm, dx, use);
  saved.norm = {};
  return dx;
}

Tensor Decoder::backward(int chunk, const Batch& batch, Tensor gradient, Saved& saved, ParameterUse& use,
                         bool weights_later) const {
  const MemoryScope activations(MemoryKind::activations);
  const std::vector<TransformerBlock>& blocks = chunks_[static_cast<std::size_t>(chunk)].blocks;
  WeightGradients* const later = weights_later ? &saved.later : nullptr;
  if (!blocks.empty()) blocks.back().prefetch(saved.blocks.back());
  if (is_last(chunk)) gradient = head_backward(std::move(gradient), saved, use, later);
  for (std::size_t i = blocks.size(); i-- > 0;) {
    if (i > 0) blocks[i - 1].prefetch(saved.blocks[i - 1]);
    blocks[i].backward(gradient, saved.blocks[i], use, later);
  }
  if (is_first(chunk)) {
    if (positions_) positions_->backward(batch.positions, gradient, use, later);
    table_.embed_backward(batch.tokens, gradient, use, later);
  }
  return gradient;
}

DecoderCost Decoder::cost(const CostedTokens& tokens) const {
  // Adapters may differ from block to block.
  LayerCost block;
  for (const TransformerBlock& each : chunks_.front().blocks) {
    LayerCost its = each.cost(tokens);
    if (its.parameters > block.parameters) block = std::move(its);
  }
  const LayerCost embeddings = table_.embed_cost(tokens), logits = head().logits_cost(tokens);
  return {.embeddings = positions_ ? embeddings.before(positions_->cost(tokens)) : embeddings,
          .block = block,
          .head = norm_.cost(tokens).before(logits),
          .loss = cross_entropy_.cost(tokens, logits.forward.products.front().n),
          .table = head_ ? 0 : table_.elements()};
}

}  // namespace stretto
