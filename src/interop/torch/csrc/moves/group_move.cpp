// Moves of divided tensors between ranks of a group.
#include "moves/group_move.hpp"

#include <algorithm>

#include "checks.hpp"
#include "memory.hpp"
#include "process_group.hpp"

namespace stretto_torch {
namespace {

stretto::Shape shape_of(const std::vector<std::int64_t>& extents) {
  TORCH_CHECK(extents.size() <= stretto::Shape::most, "A move takes tensors of at most ", stretto::Shape::most,
              " dimensions, and got one of ", extents.size(), ".");
  stretto::Shape shape;
  for (const std::int64_t extent : extents) shape.push_back(extent);
  return shape;
}

stretto::Division division_of(const GivenDivision& given, const stretto::Shape& shape) {
  const auto& [ranks, dimension, boxes] = given;
  if (dimension == replicated) return stretto::Division::replicated(shape, ranks);
  if (dimension != by_boxes) return stretto::Division::along(static_cast<std::size_t>(dimension), shape, ranks);
  stretto::Division division{ranks, {}};
  for (const std::vector<Corners>& of_rank : boxes) {
    std::vector<stretto::Box>& its = division.boxes.emplace_back();
    for (const auto& [begin, end] : of_rank) its.push_back({shape_of(begin), shape_of(end)});
  }
  return division;
}

stretto::MovePlan plan_of(const std::vector<int>& nodes, const std::vector<GivenTensor>& tensors,
                          std::int64_t most_buffer_bytes) {
  std::vector<stretto::MovedTensor> moved;
  for (const auto& [extents, example, from, to, format] : tensors) {
    const std::optional<stretto::DType> dtype = dtype_of(example.scalar_type());
    TORCH_CHECK(dtype, "A move takes no tensors of ", example.scalar_type(), "; view them in another type.");
    const stretto::Shape shape = shape_of(extents);
    moved.push_back(
        {*dtype, shape, division_of(from, shape), division_of(to, shape), stretto::quantized_format_from_name(format)});
  }
  return stretto::plan_move(std::move(moved), static_cast<int>(nodes.size()), nodes, most_buffer_bytes);
}

}  // namespace

GroupMove::GroupMove(int rank, const std::vector<int>& nodes, const std::vector<GivenTensor>& tensors,
                     std::int64_t most_buffer_bytes)
    : rank_(rank), plan_(plan_of(nodes, tensors, most_buffer_bytes)) {}

std::vector<Corners> GroupMove::boxes(std::size_t tensor, bool behind) const {
  const stretto::MovedTensor& its = plan_.tensors.at(tensor);
  const stretto::Division& division = behind ? its.to : its.from;
  std::vector<Corners> result;
  for (std::size_t i = 0; i < division.ranks.size(); ++i) {
    if (division.ranks[i] != rank_) continue;
    for (const stretto::Box& box : division.boxes[i]) {
      result.push_back({{box.begin.begin(), box.begin.end()}, {box.end.begin(), box.end.end()}});
    }
  }
  return result;
}

void GroupMove::check(const Tensors& inputs, const Tensors& outputs) const {
  const auto check_side = [&](const Tensors& tensors, bool behind) {
    TORCH_CHECK(tensors.size() == plan_.tensors.size(), "A move of ", plan_.tensors.size(), " tensors got ", tensors.size(),
                behind ? " outputs." : " inputs.");
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const stretto::MovedTensor& its = plan_.tensors[i];
      check_tensor("move", tensors[i]);
      const std::int64_t wanted = (behind ? its.to : its.from).elements(rank_);
      TORCH_CHECK(tensors[i].numel() == wanted && dtype_of(tensors[i].scalar_type()) == its.dtype,
                  behind ? "Output " : "Input ", i, " of a move has ", tensors[i].numel(), " elements of ",
                  tensors[i].scalar_type(), " on rank ", rank_, "; the plan has ", wanted, " of ", name(its.dtype),
                  " there.");
    }
  };
  check_side(inputs, false);
  check_side(outputs, true);
  check_written("stretto:move", outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const at::Tensor& input : inputs) check_apart("move", input, outputs[i]);
    for (std::size_t before = 0; before < i && outputs[i].numel() > 0; ++before) {
      const at::MemOverlapStatus shared = at::get_overlap_status(outputs[before], outputs[i]);
      TORCH_CHECK(shared == at::MemOverlapStatus::No || shared == at::MemOverlapStatus::TooHard, "Outputs ", before, " and ",
                  i, " of a move share memory; give each memory of its own.");
    }
  }
}

void GroupMove::run(const stretto::Communicator& world, const stretto::Stream& stream, const Tensors& inputs,
                    const Tensors& outputs) {
  std::shared_ptr<const stretto::Move> move;
  {
    const std::lock_guard lock(mutex_);
    move = move_;
  }
  if (!move) {  // not under the mutex: the ranks compare their plans
    move = std::make_shared<const stretto::Move>(world, plan_);
    const std::lock_guard lock(mutex_);
    if (!forgotten_) move_ = move;
  }
  std::vector<Memory> memories;  // copies live as long as the move
  const auto wrapped = [&](const Tensors& tensors) {
    std::vector<stretto::Tensor> result;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Memory& memory = memories.emplace_back(tensors[i]);
      result.push_back(memory.elements() == 0
                           ? stretto::Tensor()
                           : stretto::Tensor::wrap(memory.data(), {memory.elements()}, plan_.tensors[i].dtype));
    }
    return result;
  };
  const std::vector<stretto::Tensor> from = wrapped(inputs), to = wrapped(outputs);
  move->start(from, to, stream).wait();
  for (std::size_t i = inputs.size(); i < memories.size(); ++i) memories[i].write_back();
}

void GroupMove::forget() {
  std::shared_ptr<const stretto::Move> last;  // destroyed after the mutex is released
  const std::lock_guard lock(mutex_);
  forgotten_ = true;
  std::swap(last, move_);
}

WorkPtr ProcessGroupStretto::move(const std::shared_ptr<GroupMove>& move, const Tensors& inputs, const Tensors& outputs) {
  move->check(inputs, outputs);
  group()->keep(move);
  return put(c10d::OpType::UNKNOWN, "stretto:move", inputs, outputs, c10d::kUnsetTimeout,
             [move, inputs, outputs](const stretto::Communicator& world, const stretto::Stream& stream) {
               move->run(world, stream, inputs, outputs);
             });
}

}  // namespace stretto_torch
