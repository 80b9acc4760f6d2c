#include "overlap/offload/offloaded_unit.hpp"

#include <utility>

#include "device/rehearsal_mode.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

// A rehearsal without communication moves no blocks either: what it adds goes to the mapped file.
bool moves_blocks() { return !rehearsal_mode.skip_communication; }

ShardedUnit::Options with_shares(ShardedUnit::Options options, const OffloadedUnit::Files& files, DType dtype,
                                 DType gradient_dtype) {
  if (files.has(files.values)) options.share = elements_in(files.values->mapped(files.block), dtype);
  if (!files.has(files.gradients)) return options;
  options.gradient_share = elements_in(files.gradients->mapped(files.block), gradient_dtype);
  if (options.has_earlier_gradients) {
    options.earlier_gradient_share = elements_in(files.gradients->mapped_other(files.block), gradient_dtype);
  }
  return options;
}

}  // namespace

OffloadedUnit::OffloadedUnit(Communicator gathers, Communicator sums, std::vector<Shape> shapes, DType dtype,
                             DType gradient_dtype, Options options, const Files& files)
    : ShardedUnit(std::move(gathers), std::move(sums), std::move(shapes), dtype, gradient_dtype,
                  with_shares(std::move(options), files, dtype, gradient_dtype)),
      files_(files),
      dtype_(dtype),
      gradient_dtype_(gradient_dtype),
      in_file_(share()),
      gradients_in_file_(gradient_share()),
      squares_(std::make_shared<std::vector<double>>(owned().size(), 0)) {
  if (!files.has(files.gradients) || !earlier_gradient_share()) return;
  earlier_in_file_ = earlier_gradient_share();
  earlier_squares_ = std::make_shared<std::vector<double>>(owned().size(), 0);
}

// ---- values

void OffloadedUnit::fetch() {
  if (!files_.has(files_.values) || values_.memory || has_values() || has_second_copy() || !moves_blocks()) return;
  values_.memory = files_.values->memory(files_.block);
  values_.arrived = files_.values->read(files_.block, values_.memory);
}

Work OffloadedUnit::gather(const Stream& stream) {
  fetch();
  const Coming read = std::exchange(values_, {});
  if (!read.memory) return ShardedUnit::gather(stream);
  if (ranks() == 1) {
    set_values(elements_in(read.memory, dtype_));
    return read.arrived;
  }
  stream.wait(read.arrived);
  set_share(elements_in(read.memory, dtype_));
  Work gathered = ShardedUnit::gather(stream);
  set_share(in_file_);
  return gathered;
}

// ---- gradients

void OffloadedUnit::used_for(Pass pass, int /*microbatch*/) {
  if (adds_gradients(pass) && has_sum_ && !has_gradients()) read_sums();
}

void OffloadedUnit::read_sums() {
  if (!files_.has(files_.gradients) || sums_.memory || !moves_blocks()) return;
  sums_.memory = files_.gradients->memory(files_.block);
  sums_.arrived = files_.gradients->read(files_.block, sums_.memory);
}

const std::vector<Tensor>& OffloadedUnit::gradients() {
  if (!files_.has(files_.gradients) || ranks() > 1 || has_gradients()) return ShardedUnit::gradients();
  if (has_sum_) read_sums();
  const Coming read = std::exchange(sums_, {});
  read.arrived.wait();
  added_to_ = read.memory ? read.memory : files_.gradients->memory(files_.block);
  set_gradients(elements_in(added_to_, gradient_dtype_));
  if (!read.memory) begin_gradients();
  return ShardedUnit::gradients();
}

void OffloadedUnit::discard_gradients() {
  added_to_ = {};
  ShardedUnit::discard_gradients();
}

Work OffloadedUnit::sum(const Stream& stream) {
  if (!files_.has(files_.gradients) || !moves_blocks()) return ShardedUnit::sum(stream);
  if (ranks() == 1) {
    gradients();  // an unused unit adds zeros
    zero_unset();
    has_sum_ = true;
    const Tensor block = added_to_;
    discard_gradients();
    return note_and_write(stream, block);
  }
  if (has_sum_) read_sums();
  const Coming read = std::exchange(sums_, {});
  const Tensor block = read.memory ? read.memory : files_.gradients->memory(files_.block);
  stream.wait(read.arrived);
  set_gradient_share(elements_in(block, gradient_dtype_));
  std::ignore = ShardedUnit::sum(stream);
  set_gradient_share(gradients_in_file_);
  return note_and_write(stream, block);
}

void OffloadedUnit::exchange_gradients() {
  ShardedUnit::exchange_gradients();
  if (!earlier_squares_) return;
  std::swap(gradients_in_file_, earlier_in_file_);
  std::swap(squares_, earlier_squares_);
}

std::vector<double> OffloadedUnit::squares_of(const Tensor& gradient_share) const {
  std::int64_t first = 0;  // owned ranges follow each other in the share
  std::vector<Tensor> ranges;
  for (const ElementRange& each : owned()) {
    ranges.push_back(gradient_share.view(first, {each.count}));
    first += each.count;
  }
  return kernels::sums_of_squares(ranges);
}

Work OffloadedUnit::note_and_write(const Stream& stream, const Tensor& block) {
  const Work noted = stream.enqueue(
      [this, squares = squares_, share = elements_in(block, gradient_dtype_)] { *squares = squares_of(share); });
  return files_.gradients->write(files_.block, block, noted);
}

}  // namespace stretto
