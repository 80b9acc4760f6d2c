#include "overlap/offload/unit_file.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/fail.hpp"
#include "device/stream/abandoned_work.hpp"
#include "overlap/offload/aligned_memory.hpp"

namespace stretto {
namespace {

std::int64_t aligned_sum(const std::vector<std::int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0},
                         [](std::int64_t sum, std::int64_t each) { return sum + ScratchFile::aligned(each); });
}

std::int64_t largest(const std::vector<std::int64_t>& bytes) {
  return bytes.empty() ? 0 : ScratchFile::aligned(*std::max_element(bytes.begin(), bytes.end()));
}

Tensor aligned_buffer(std::int64_t bytes) {
  const MemoryScope scope(MemoryKind::buffers);
  return aligned_memory(bytes);
}

}  // namespace

UnitFile::UnitFile(const std::string& directory, std::vector<std::int64_t> bytes, const Options& options)
    : name_(options.name),
      gate_(options.gate),
      bytes_(std::move(bytes)),
      file_bytes_(aligned_sum(bytes_) * (options.two_places ? 2 : 1)),
      file_(directory, file_bytes_),
      written_(bytes_.size()),
      others_written_(bytes_.size()),
      in_(options.overlap ? Stream(name_ + " in") : Stream::inline_()),
      out_(options.overlap ? Stream(name_ + " out") : Stream::inline_()) {
  std::int64_t offset = 0;
  for (const std::int64_t each : bytes_) {
    offsets_.push_back(offset);
    offset += ScratchFile::aligned(each);
  }
  if (options.two_places) {
    for (const std::int64_t each : offsets_) others_.push_back(offset + each);
  }
  for (Buffer& buffer : buffers_) buffer.memory = aligned_buffer(largest(bytes_));
}

UnitFile::~UnitFile() {
  std::vector<Work> works = written_;
  works.insert(works.end(), others_written_.begin(), others_written_.end());
  for (const Buffer& buffer : buffers_) works.push_back(buffer.read);
  for (const Work& work : works) wait_for_abandoned("A read or a write of a scratch file", [&] { work.wait(); });
}

std::int64_t UnitFile::buffer_bytes(const std::vector<std::int64_t>& bytes) {
  return largest(bytes) > 0 ? buffers * (largest(bytes) + ScratchFile::alignment) : 0;
}

// ---- an update

void UnitFile::begin(std::vector<std::size_t> order, Place to, Place from) {
  require((to == Place::same && from == Place::same) || !others_.empty(),
          "Blocks of {} have one place each; make the file with two.", name_);
  release();
  place_ = to;
  from_ = from;
  order_ = std::move(order);
  std::erase_if(order_, [&](std::size_t unit) { return !has(unit); });
  taken_ = reading_ = 0;
  for (int ahead = 0; ahead + 1 < buffers; ++ahead) read_next();
}

void UnitFile::read_next() {
  if (reading_ == order_.size()) return;
  const std::size_t unit = order_[reading_];
  Buffer& buffer = buffers_[reading_++ % buffers];
  in_.wait(buffer.written);
  const bool other = from_ == Place::other;
  buffer.read = read_at((other ? others_ : offsets_)[unit], unit, buffer.memory, (other ? others_written_ : written_)[unit]);
}

Tensor UnitFile::take(std::size_t unit) {
  if (!has(unit)) return {};
  require(taken_ < order_.size() && order_[taken_] == unit,
          "The block of unit {} is taken as number {} of an update, whose order has another one there.", unit, taken_);
  const Buffer& buffer = buffers_[taken_ % buffers];
  buffer.read.wait();
  return buffer.memory.view(0, {bytes_[unit]});
}

void UnitFile::give_back(std::size_t unit, bool writes) {
  if (!has(unit)) return;
  Buffer& buffer = buffers_[taken_++ % buffers];
  const bool other = place_ == Place::other;
  Work& last = (other ? others_written_ : written_)[unit];
  buffer.written = writes ? last = write_at((other ? others_ : offsets_)[unit], unit, buffer.memory, {}) : Work();
  read_next();
}

std::vector<std::size_t> UnitFile::accept() {
  if (std::exchange(place_, Place::same) == Place::same) return {};
  std::vector<std::size_t> taken(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(taken_));
  for (const std::size_t unit : taken) {
    std::swap(offsets_[unit], others_[unit]);
    std::swap(written_[unit], others_written_[unit]);
  }
  return taken;
}

void UnitFile::end() { touch(); }

// ---- single blocks

Tensor UnitFile::memory(std::size_t unit) const { return aligned_buffer(bytes_[unit]); }

Work UnitFile::read(std::size_t unit, const Tensor& to) { return read_at(offsets_[unit], unit, to, written_[unit]); }

Work UnitFile::read_at(std::int64_t offset, std::size_t unit, const Tensor& to, const Work& after) {
  const std::int64_t bytes = ScratchFile::aligned(bytes_[unit]);
  in_.wait(after);
  read_ += bytes;
  return in_.enqueue([this, to, offset, bytes] {
    pass_gate(false, offset, bytes);
    file_.read(offset, to.raw(), bytes);
  });
}

Work UnitFile::write(std::size_t unit, const Tensor& from, const Work& after) {
  return written_[unit] = write_at(offsets_[unit], unit, from, after);
}

Work UnitFile::write_at(std::int64_t offset, std::size_t unit, const Tensor& from, const Work& after) {
  const std::int64_t bytes = ScratchFile::aligned(bytes_[unit]);
  out_.wait(after);
  written_bytes_ += bytes;
  return out_.enqueue([this, from, offset, bytes] {
    pass_gate(true, offset, bytes);
    file_.write(offset, from.raw(), bytes);
  });
}

void UnitFile::pass_gate(bool writes, std::int64_t offset, std::int64_t bytes) const {
  if (gate_) gate_->pass(writes, offset, bytes);
}

// ---- out of turn

Tensor UnitFile::mapped(std::size_t unit) {
  if (!has(unit)) return {};
  return Tensor::wrap(file_.mapped() + offsets_[unit], {bytes_[unit]}, DType::u8);
}

void UnitFile::exchange() {
  std::swap(offsets_, others_);
  std::swap(written_, others_written_);
}

Tensor UnitFile::mapped_other(std::size_t unit) {
  if (!has(unit)) return {};
  return Tensor::wrap(file_.mapped() + others_[unit], {bytes_[unit]}, DType::u8);
}

void UnitFile::touch() {
  for (const std::vector<Work>* const works : {&written_, &others_written_}) {
    for (const Work& work : *works) work.wait();
  }
}

void UnitFile::release(std::size_t unit) {
  if (!has(unit)) return;
  file_.forget(offsets_[unit], ScratchFile::aligned(bytes_[unit]));
  if (!others_.empty()) file_.forget(others_[unit], ScratchFile::aligned(bytes_[unit]));
}

void UnitFile::release() { file_.forget(0, file_bytes_); }

}  // namespace stretto
