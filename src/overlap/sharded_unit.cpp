#include "stretto/overlap/sharded_unit.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/fail.hpp"
#include "device/stream/kernel_scope.hpp"
#include "device/stream/skipped_work.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

std::int64_t elements_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

OperationOptions gather_options(QuantizedFormat format, const Method& method, const char* tag) {
  OperationOptions options{.method = method, .tag = tag};
  options.quantization.format = format;
  return options;
}

Tensor buffer(std::int64_t count, DType dtype) {
  const MemoryScope buffers(MemoryKind::buffers);
  return Tensor::symmetric({count}, dtype);
}

Tensor zeros(std::int64_t count, DType dtype, MemoryKind kind) {
  const MemoryScope scope(kind);
  Tensor tensor = Tensor::symmetric({count}, dtype);
  tensor.zero();
  return tensor;
}

}  // namespace

ShardedUnit::ShardedUnit(Communicator gathers, Communicator sums, std::vector<Shape> shapes, DType dtype,
                         DType gradient_dtype, const Options& options)
    : gathers_(std::move(gathers)), sums_(std::move(sums)), shapes_(std::move(shapes)), options_(options), dtype_(dtype) {
  require(gathers_ && sums_ && !shapes_.empty(), "A unit of {} tensors has nothing to gather; give it tensors and ranks.",
          shapes_.size());
  require(sums_.size() == gathers_.size() && sums_.rank() == gathers_.rank(),
          "Gradients of a unit over {} ranks cannot be summed over {}, where rank {} is rank {}; give a communicator of the "
          "same ranks.",
          gathers_.size(), sums_.size(), gathers_.rank(), sums_.rank());
  require(options_.stage == ZeroStage::values || (!options_.secondary && options_.weights == QuantizedFormat::none),
          "A unit of ZeRO stage {}, whose values are always there, has no second copy and no quantized gathers; give stage "
          "3, or "
          "leave these out.",
          static_cast<int>(options_.stage));
  require(
      options_.stored == StoredFormat::plain ||
          (!options_.trainable && !options_.secondary && options_.weights == QuantizedFormat::none),
      "Values in {} cannot be updated, and travel as they are stored; make the unit not trainable, without a second copy "
      "and quantized gathers.",
      stretto::name(options_.stored));
  require(options_.overwritten.empty() || options_.overwritten.size() == shapes_.size(),
          "{} flags say which of {} tensors have gradients that are overwritten; give one for each tensor, or none.",
          options_.overwritten.size(), shapes_.size());
  require(options_.older_versions == 0 || options_.stage < ZeroStage::gradients,
          "A unit of ZeRO stage {} cannot keep {} older versions of its values; choose stage 0 or 1.",
          static_cast<int>(options_.stage), options_.older_versions);
  options_.overwritten.resize(shapes_.size(), false);
  unset_ = std::make_shared<bool[]>(shapes_.size());
  keeps_values_ = options_.stage < ZeroStage::values || (gathers_.size() == 1 && !options_.share);
  keeps_gradients_ = options_.stage < ZeroStage::gradients || (gathers_.size() == 1 && !options_.gradient_share);
  require(!options_.secondary || gathers_.size() % options_.secondary.size() == 0,
          "A second copy of a unit over {} ranks cannot be divided over {}; choose a divisor.", gathers_.size(),
          options_.secondary ? options_.secondary.size() : 0);
  for (const Shape& shape : shapes_) elements_ += elements_of(shape);
  const std::int64_t share = share_elements_ = (elements_ + gathers_.size() - 1) / gathers_.size();
  for (const Tensor& each : {options_.share, options_.gradient_share, options_.earlier_gradient_share}) {
    require(!each || each.size() == share, "A share of {} elements cannot lie in memory of {}; give as much.", share,
            each.size());
  }
  // Refuses here what the first gather or sum would refuse.
  gathers_.check({.collective = Collective::all_gather, .count = share, .dtype = dtype},
                 gather_options(options_.weights, options_.gather_by, ""));
  sums_.check({.collective = Collective::reduce_scatter, .count = share, .dtype = gradient_dtype, .op = ReduceOp::sum},
              sum_options());

  allocate_values();
  for (int i = 0; i < options_.older_versions; ++i) {
    older_flat_.push_back(zeros(padded_elements(), dtype_, MemoryKind::values));
    older_.push_back(views_of(older_flat_.back()));
  }
  if (!options_.trainable) return;
  allocate_gradients(gradient_dtype, options_.gradient_share);
  if (!options_.has_earlier_gradients) return;
  ShardedUnit::exchange_gradients();
  allocate_gradients(gradient_dtype, options_.earlier_gradient_share);
  ShardedUnit::exchange_gradients();
}

ZeroStage ShardedUnit::stage() const {
  if (is_stored_ || !keeps_values_) return ZeroStage::values;
  if (!keeps_gradients_) return ZeroStage::gradients;
  return gathers_.size() == 1 ? ZeroStage::none : std::min(options_.stage, ZeroStage::optimizer);
}

void ShardedUnit::set_values(const Tensor& whole) {
  values_flat_ = whole;
  values_ = views_of(whole);
}

void ShardedUnit::set_gradients(const Tensor& whole) {
  gradients_flat_ = whole;
  gradients_ = views_of(whole);
}

void ShardedUnit::allocate_gradients(DType dtype, const Tensor& share) {
  if (!keeps_gradients_) {
    gradient_share_ = share ? share : zeros(share_elements_, dtype, MemoryKind::gradients);
  } else {
    set_gradients(zeros(padded_elements(), dtype, MemoryKind::gradients));
    gradient_share_ = gradients_flat_.view(rank() * share_elements_, {share_elements_});
  }
}

void ShardedUnit::allocate_values() {
  if (!keeps_values_) {
    share_ = options_.share ? options_.share : zeros(share_elements_, dtype_, MemoryKind::values);
    return;
  }
  set_values(zeros(padded_elements(), dtype_, MemoryKind::values));
  share_ = values_flat_.view(rank() * share_elements_, {share_elements_});
}

std::vector<Tensor> ShardedUnit::views_of(const Tensor& flat) const {
  std::vector<Tensor> views;
  views.reserve(shapes_.size());
  std::int64_t first = 0;
  for (const Shape& shape : shapes_) {
    views.push_back(flat.view(first, shape));
    first += elements_of(shape);
  }
  return views;
}

std::vector<ElementRange> ShardedUnit::owned() const {
  const std::int64_t begin = gathers_.rank() * share_elements_;
  const std::int64_t end = begin + share_elements_;
  std::vector<ElementRange> result;
  std::int64_t first = 0;  // of the tensor, in the vector
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const std::int64_t last = first + elements_of(shapes_[i]);
    const std::int64_t from = std::max(begin, first);
    const std::int64_t to = std::min(end, last);
    if (from < to) result.push_back({i, from - first, to - from});
    first = last;
  }
  return result;
}

// ---- values

void ShardedUnit::keep_version(int place) {
  as_kernel("keep version", [&] { older_flat_.at(static_cast<std::size_t>(place)).copy_from(values_flat_); });
}

Work ShardedUnit::gather_version(int place, const Stream& stream) {
  const Tensor& all = older_flat_.at(static_cast<std::size_t>(place));
  if (gathers_.size() == 1) return {};
  return gathers_.all_gather(all.view(rank() * share_elements_, {share_elements_}), all, stream,
                             gather_options(QuantizedFormat::none, options_.gather_by, "older parameters"));
}

void ShardedUnit::share_changed() {
  secondary_is_valid_ = false;
  if (!is_stored_) records_ = {};
}

void ShardedUnit::store() {
  if (options_.stored == StoredFormat::plain || is_stored_) return;
  computation().wait(last_gather_);
  if (!records_) {
    const Tensor& kept = keeps_values_ ? values_flat_ : share_;
    const MemoryScope scope(MemoryKind::values);
    records_ = Tensor::symmetric({stored_bytes(options_.stored, kept.size())}, DType::u8);
    kernels::store_values(options_.stored, kept, records_);
  }
  is_stored_ = true;
  values_.clear();
  values_flat_ = share_ = {};
}

// The records stay, since values that are rounded again may be rounded otherwise.
void ShardedUnit::restore() {
  if (!is_stored_) return;
  computation().wait(last_gather_);
  is_stored_ = false;
  allocate_values();
  kernels::restore_values(options_.stored, records_, keeps_values_ ? values_flat_ : share_);
}

// The stream restores what arrives in it.
Work ShardedUnit::restore_gathered(const Stream& stream) {
  Tensor records = records_;
  if (!keeps_values_) {
    records = buffer(records_.size() * gathers_.size(), DType::u8);
    std::ignore = gathers_.all_gather(records_, records, stream,
                                      gather_options(QuantizedFormat::none, options_.gather_by, "stored parameters"));
  }
  stream.wait(computation());  // a GPU allocates in the order of computation()
  const std::int64_t shares = keeps_values_ ? 1 : gathers_.size();
  return stream.enqueue([records, shares, format = options_.stored, to = values_flat_] {
    const std::int64_t bytes = records.size() / shares, elements = to.size() / shares;
    for (std::int64_t i = 0; i < shares; ++i) {
      kernels::restore_values(format, records.view(i * bytes, {bytes}), to.view(i * elements, {elements}));
    }
  });
}

Work ShardedUnit::gather(const Stream& stream) {
  if (stage() != ZeroStage::values) {
    if (gathers_.size() == 1) return {};
    return gathers_.all_gather(share_, values_flat_, stream,
                               gather_options(QuantizedFormat::none, options_.gather_by, "parameters"));
  }
  require(!values_flat_, "A unit of {} tensors is gathered already; release it first.", shapes_.size());
  set_values(buffer(padded_elements(), dtype_));
  if (is_stored_) return last_gather_ = restore_gathered(stream);
  stream.wait(last_gather_);  // which may still fill the second copy
  if (secondary_is_valid_) {
    return last_gather_ = options_.secondary.all_gather(secondary_, values_flat_, stream, {.tag = "parameters in node"});
  }
  last_gather_ =
      gathers_.all_gather(share_, values_flat_, stream, gather_options(options_.weights, options_.gather_by, "parameters"));
  if (!options_.secondary) return last_gather_;
  const std::int64_t part = values_flat_.size() / options_.secondary.size();
  if (!secondary_) {
    const MemoryScope values(MemoryKind::values);
    secondary_ = Tensor::symmetric({part}, dtype_);
    stream.wait(computation());  // a GPU allocates in the order of computation(): the memory exists from this point on
  }
  if (was_skipped(last_gather_)) return last_gather_;
  secondary_is_valid_ = true;
  return last_gather_ = stream.enqueue([kept = secondary_, from = values_flat_.view(options_.secondary.rank() * part,
                                                                                    {part})] { kept.copy_from(from); });
}

void ShardedUnit::release() {
  if (stage() != ZeroStage::values) return;
  values_.clear();
  values_flat_ = {};
}

// ---- gradients

void ShardedUnit::zero_gradients() {
  has_sum_ = false;
  for (const Tensor& each : local_) each.zero();
  if (options_.trainable && keeps_gradients_) begin_gradients();
}

void ShardedUnit::begin_gradients() {
  const auto zero = [&](std::int64_t begin, std::int64_t end) {
    if (begin < end) as_kernel("zero", [&] { gradients_flat_.view(begin, {end - begin}).zero(); });
  };
  std::int64_t run = 0, end = 0;  // [run, end) is zeroed
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const std::int64_t begin = std::exchange(end, end + gradients_[i].size());
    if (!options_.overwritten[i]) continue;
    unset_[i] = true;
    zero(run, begin);
    run = end;
  }
  zero(run, gradients_flat_.size());
}

void ShardedUnit::zero_unset() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (std::exchange(unset_[i], false)) as_kernel("zero", [&] { gradients_[i].zero(); });
  }
}

const std::vector<Tensor>& ShardedUnit::gradients() {
  require(options_.trainable, "A unit of {} tensors is not trainable and has no gradients to add to or sum.",
          shapes_.size());
  if (!gradients_flat_) {
    set_gradients(buffer(gradient_share_.size() * sums_.size(), gradient_share_.dtype()));
    begin_gradients();
  }
  return gradients_;
}

OperationOptions ShardedUnit::sum_options() const {
  OperationOptions options{.method = options_.sum_by, .tag = "gradients"};
  options.quantization.format = options_.gradients;
  if (options_.gradients == QuantizedFormat::none) return options;
  options.quantization.rounding = options_.gradient_rounding;
  options.quantization.seed = options_.seed + sums_so_far_;
  options.quantization.errors = options_.errors;
  options.quantization.tensor = options_.name;
  return options;
}

Work ShardedUnit::sum(const Stream& stream) {
  gradients();  // an unused unit adds zeros
  zero_unset();
  if (!local_.empty()) return add_locally(stream);
  if (keeps_gradients_ && sums_.size() == 1) return {};
  const Tensor into = has_sum_ ? buffer(gradient_share_.size(), gradient_share_.dtype()) : gradient_share_;
  if (has_sum_) stream.wait(computation());  // a GPU allocates in the order of computation()
  Work work = sums_.reduce_scatter(gradients_flat_, into, ReduceOp::sum, stream, sum_options());
  ++sums_so_far_;
  if (has_sum_) {
    work = stream.enqueue([to = gradient_share_, from = into] { kernels::add(to, from, to); });
  }
  has_sum_ = true;
  discard_gradients();
  return work;
}

void ShardedUnit::keep_gradients_local(std::vector<Tensor> to) {
  require(
      to.empty() || (options_.trainable && keeps_values_ && to.size() == shapes_.size()),
      "Gradients of a unit of {} tensors at ZeRO stage {} cannot be added to {} tensors; give one for each, at stage 2 or "
      "below, of a unit that is trainable.",
      shapes_.size(), static_cast<int>(options_.stage), to.size());
  local_ = std::move(to);
}

Work ShardedUnit::add_locally(const Stream& stream) {
  stream.wait(computation());
  Work work = stream.enqueue([all = gradients_, to = local_] {
    for (std::size_t i = 0; i < all.size(); ++i) {
      Tensor wide = all[i];
      if (wide.dtype() != to[i].dtype()) {
        wide = Tensor(all[i].shape(), to[i].dtype());
        kernels::convert(all[i], wide);
      }
      kernels::add(to[i], wide, to[i]);
    }
  });
  discard_gradients();
  return work;
}

void ShardedUnit::discard_gradients() {
  if (keeps_gradients_) return;
  gradients_.clear();
  gradients_flat_ = {};
}

Work ShardedUnit::gather_gradients(const Stream& stream) {
  require(stage() == ZeroStage::none, "Whole gradients are kept at ZeRO stage 0 only; this unit has stage {}.",
          static_cast<int>(stage()));
  if (sums_.size() == 1 || !local_.empty()) return {};
  return sums_.all_gather(gradient_share_, gradients_flat_, stream, {.tag = "gradients"});
}

void ShardedUnit::exchange_gradients() {
  if (!options_.has_earlier_gradients) return;  // such as a frozen unit
  std::swap(gradients_flat_, earlier_.flat);
  std::swap(gradient_share_, earlier_.share);
  std::swap(gradients_, earlier_.views);
}

Tensor ShardedUnit::whole(const Tensor& own) const {
  require(own.size() == share_elements_, "A share of {} elements is not one of a unit whose shares have {}.", own.size(),
          share_elements_);
  Tensor result = buffer(own.size() * gathers_.size(), own.dtype());
  computation().wait(gathers_.all_gather(own, result, computation(), {.tag = "whole unit"}));
  return result;
}

}  // namespace stretto
